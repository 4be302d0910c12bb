"""The measurements of one running server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

import uvloop
from benchmarks.engine.peers.client import Sample, closed_loop, send
from benchmarks.engine.peers.processes import Reading
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Gap, Load, Prefix, Spread
from benchmarks.engine.peers.servers import Running

T = TypeVar("T")

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
STREAMS, STREAM_OUTPUT, LONG_PROMPT, LONG_OUTPUT = 8, 320, 2000, 4
STREAMS_BEFORE = 24  # events that every stream has had before the long prompt is sent
SHARED, ALONE, PREFIX_OUTPUT, PREFIX_PAIRS = 1152, 128, 16, 2  # tokens; nine tenths of the prompt are shared


class CellError(Exception):
    """A cell could not be measured at all."""


@dataclass(frozen=True)
class Bench:
    """A running server with the prompts to ask it, and where its records belong."""

    name: str
    block: int
    server: Running
    prompts: Prompts

    def bodies(self, seed: str, count: int, tokens: int = PROMPT_TOKENS, output: int = OUTPUT_TOKENS) -> list[bytes]:
        """Requests of new prompts; equal seeds give equal prompts to every server."""
        target = self.server.target
        return [target.body(self.prompts.message(f"{seed}/{i}", tokens), output) for i in range(count)]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on a fast loop, with the collector of this process at rest."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.enable()


def requests_of(concurrency: int) -> int:
    """Requests of one closed loop: two waves, above 16 at a time one and a half; at least three."""
    return max(3, 2 * concurrency if concurrency <= 16 else concurrency * 3 // 2)


def errors_of(samples: list[Sample]) -> list[str]:
    """The kinds of errors, sorted."""
    return sorted(sample.error for sample in samples if sample.error)


def first_token(bench: Bench) -> float:
    """Seconds from the start of the process to the first token of a first request. Raises CellError."""
    (body,) = bench.bodies(f"first/{bench.name}/{bench.block}", 1, output=8)
    sample = run(send(bench.server.target, body, Sample()))
    if sample.error:
        raise CellError(f"{bench.name}: the first request failed: {sample.error}")
    return sample.times[0] - bench.server.started


def warm_up(bench: Bench, concurrency: int) -> None:
    """One wave of other prompts, so that no cell pays for what happens once."""
    bodies = bench.bodies(f"warm/{bench.name}/{bench.block}", concurrency, output=8)
    run(closed_loop(bench.server.target, bodies, concurrency))


def load(bench: Bench, round_: int, concurrency: int) -> Load:
    """A closed loop of 128 tokens in and 64 out."""
    bodies = bench.bodies(f"load/{round_}/{concurrency}", requests_of(concurrency))
    before = Reading.take(bench.server.pid)
    samples, seconds = run(closed_loop(bench.server.target, bodies, concurrency))
    cpu = Reading.take(bench.server.pid).since(before)
    good = [sample for sample in samples if not sample.error]
    return Load(
        server=bench.name,
        block=bench.block,
        round=round_,
        concurrency=concurrency,
        requests=len(samples),
        errors=errors_of(samples),
        seconds=round(seconds, 4),
        prompt_tokens=sum(sample.prompt_tokens for sample in good),
        output_tokens=sum(sample.output_tokens for sample in good),
        cached_tokens=sum(sample.cached_tokens for sample in good),
        events=sum(len(sample.times) for sample in good),
        ttft_ms=Spread.of([sample.ttft for sample in good]),
        itl_ms=Spread.of([gap for sample in good for gap in sample.gaps]),
        cpu=cpu,
        digests=[sample.digest if not sample.error else "" for sample in samples],
    )


def gap(bench: Bench) -> Gap:
    """Eight streams; when all of them run, a prompt of 2,000 tokens arrives."""
    seed = f"gap/{bench.block}"
    streams = [Sample() for _ in range(STREAMS)]
    long = Sample()
    bodies = bench.bodies(seed, STREAMS, output=STREAM_OUTPUT)
    (intruder,) = bench.bodies(f"{seed}/long", 1, LONG_PROMPT, LONG_OUTPUT)

    async def both() -> None:
        ready = asyncio.Event()

        def changed() -> None:
            if all(len(sample.times) >= STREAMS_BEFORE or sample.ended for sample in streams):
                ready.set()

        for sample in streams:
            sample.changed = changed
        tasks = [
            asyncio.create_task(send(bench.server.target, body, sample))
            for body, sample in zip(bodies, streams, strict=True)
        ]
        await ready.wait()
        await send(bench.server.target, intruder, long)
        await asyncio.gather(*tasks)

    run(both())
    errors = errors_of([*streams, long])
    if errors:
        return _gap(bench, errors, (0.0, 0.0, 0.0), long)
    return _gap(bench, errors, gaps_around(streams, long.sent, long.times[0]), long)


def gaps_around(streams: list[Sample], sent: float, answered: float) -> tuple[float, float, float]:
    """Seconds: median gap while all streams run and before `sent`; median and largest until `answered`."""
    all_run = max(stream.times[0] for stream in streams)
    before: list[float] = []
    beside: list[float] = []
    for begin, end in (pair for stream in streams for pair in pairwise(stream.times)):
        if all_run <= begin and end <= sent:
            before.append(end - begin)
        elif end > sent and begin < answered:
            beside.append(end - begin)
    if not before or not beside:
        return 0.0, 0.0, 0.0
    return median(before), median(beside), max(beside)


def _gap(bench: Bench, errors: list[str], found: tuple[float, float, float], long: Sample) -> Gap:
    usual, beside, largest = (round(1000 * value, 2) for value in found)
    return Gap(
        server=bench.name,
        block=bench.block,
        errors=errors,
        itl_ms=usual,
        itl_beside_ms=beside,
        largest_ms=largest,
        ttft_ms=0.0 if errors else round(1000 * long.ttft, 1),
        prompt_tokens=long.prompt_tokens,
    )


def prefix(bench: Bench) -> Prefix:
    """Cold, warm with another ending, and the cold prompt again: its answer must be the same."""
    target = bench.server.target
    cold: list[Sample] = []
    warm: list[Sample] = []
    again: list[Sample] = []
    for pair in range(PREFIX_PAIRS):
        seed = f"prefix/{bench.block}/{pair}"
        shared = bench.prompts.words(seed, SHARED)
        bodies = [
            target.body(bench.prompts.message(f"{seed}/{end}", SHARED + ALONE, shared), PREFIX_OUTPUT)
            for end in ("first", "second", "first")
        ]
        for body, samples in zip(bodies, (cold, warm, again), strict=True):
            samples.append(run(send(target, body, Sample())))
    errors = errors_of([*cold, *warm, *again])
    good = not errors
    return Prefix(
        server=bench.name,
        block=bench.block,
        errors=errors,
        cold_ms=[round(1000 * sample.ttft, 2) for sample in cold] if good else [],
        warm_ms=[round(1000 * sample.ttft, 2) for sample in warm] if good else [],
        cached_tokens=[sample.cached_tokens for sample in warm],
        prompt_tokens=[sample.prompt_tokens for sample in warm],
        compared=len(cold) if good else 0,
        equal=sum(a.whole_digest == b.whole_digest for a, b in zip(cold, again, strict=True)) if good else 0,
    )
