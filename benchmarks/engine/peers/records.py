"""What is measured, as lines of `cells.jsonl`. No prompt and no answer is in them, only counts, times and digests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from benchmarks.engine.peers.stats import percentile


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of one cell, ms."""

    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values_s: Sequence[float]) -> Spread:
        """Of values in seconds; all zero if there are none."""
        ms = sorted(1000 * value for value in values_s) or [0.0]
        return cls(*(round(value, 2) for value in (*(percentile(ms, p) for p in (50, 95, 99)), ms[-1])))


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds of one cell, and who used them."""

    server: dict[str, float]  # s by process of the server
    threads: dict[str, float]  # s by thread name of the server
    client: float  # s of this benchmark
    foreign: float  # s of everything else on the machine

    @property
    def total(self) -> float:
        """s of the server's processes together."""
        return sum(self.server.values())


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """One closed loop: `requests` of equal lengths, `concurrency` at a time."""

    server: str
    block: int  # from 0: which start of the server
    round: int  # from 0, over all blocks; equal rounds have equal prompts
    concurrency: int
    requests: int
    errors: list[str]
    seconds: float
    prompt_tokens: int  # as the server counts them, all requests together
    output_tokens: int
    cached_tokens: int
    events: int  # with text
    ttft_ms: Spread
    itl_ms: Spread
    cpu: Cpu
    digests: list[str]  # of each answer's first characters, in the order of the prompts

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of the whole loop, its beginning and its end included."""
        return self.output_tokens / self.seconds


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """One life of a server."""

    server: str
    block: int
    healthy_s: float  # from the start of the process
    first_token_s: float  # likewise, with one request sent as soon as it was healthy
    resident_bytes: int  # proportional, after the loops
    peak_bytes: int  # sum of each process's peak
    processes: int
    leaks: int  # prompts whose beginning was found in the server's own log


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag="gap"):
    """Eight streams, beside which a long prompt arrives."""

    server: str
    block: int
    errors: list[str]
    itl_ms: float  # median of the streams before the prompt was sent
    itl_beside_ms: float  # median until the prompt's first token
    largest_ms: float  # largest gap of a stream until the prompt's first token
    ttft_ms: float  # of the long prompt
    prompt_tokens: int  # of the long prompt


class Prefix(msgspec.Struct, frozen=True, kw_only=True, tag="prefix"):
    """Prompts that share nine tenths with one that was computed before."""

    server: str
    block: int
    errors: list[str]
    cold_ms: list[float]  # TTFT
    warm_ms: list[float]
    cached_tokens: list[int]  # of the warm ones, as the server reports
    prompt_tokens: list[int]
    compared: int  # prompts sent twice, cold and warm
    equal: int  # of which the answers were equal


class Pool(msgspec.Struct, frozen=True, kw_only=True, tag="pool"):
    """A closed loop of Headrace with few pages of KV."""

    pages: int
    repeat: int
    demand_pages: int  # of all concurrent requests at full length
    errors: list[str]
    seconds: float
    output_tokens: int
    preemptions: int
    ttft_ms: Spread
    itl_ms: Spread
    digests: list[str]


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps"):
    """Steps inside one process, without HTTP: rows of (what, median ms, least ms, CPU ms)."""

    server: str
    round: int = 0  # in which it was measured in turn with the others
    rows: list[tuple[str, float, float, float]]


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """Where the time of one kind of step goes: rows of (operation, share of the step's CPU time)."""

    server: str
    what: str
    rows: list[tuple[str, float]]


Record = Load | Start | Gap | Prefix | Pool | Steps | Profile


def key(record: Record) -> tuple[str, ...]:
    """What a record is of; there is one for each key, the latest."""
    match record:
        case Load():
            return ("load", record.server, str(record.round), str(record.concurrency))
        case Start() | Gap() | Prefix():
            return (type(record).__name__.lower(), record.server, str(record.block))
        case Pool():
            return ("pool", str(record.pages), str(record.repeat))
        case Steps():
            return ("steps", record.server, str(record.round))
        case Profile():
            return ("profile", record.server, record.what)


class Store:
    """The records of an output folder; each is written as soon as it is there."""

    def __init__(self, path: Path):
        self._path = path
        self._records: dict[tuple[str, ...], Record] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                record = msgspec.json.decode(line, type=Record)
                self._records[key(record)] = record

    def add(self, record: Record) -> None:
        """Keep it, in the file too."""
        self._records[key(record)] = record
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    def has(self, *key: str) -> bool:
        """Is there a record of this key, without errors?"""
        return key in self._records and not getattr(self._records[key], "errors", ())

    def all(self) -> list[Record]:
        """In the order of their keys' first appearance."""
        return list(self._records.values())
