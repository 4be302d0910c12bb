"""The autoscaling benchmark as a whole: traces in, results.json and report.md out."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.bench import builtin, cells, check, days, demand, packed, profile, report
from headrace.bench.cells import Grid, Row
from headrace.bench.readers import TraceError, read
from headrace.bench.trace import Lengths, Series, Trace

RESULTS, COMMANDS, RESUME = "results.json", "commands.txt", "--resume"
SAME = ("--profile", "--seed")  # of all commands of one set of results
LENGTHS = "azure_llm_2023_conv"  # whose lengths rate-only series get


@dataclass(frozen=True)
class Options:
    """What is run."""

    traces: tuple[str, ...] = ()  # files, or names of packed traces; none = all packed ones
    grid: Grid = field(default_factory=Grid)
    profile: str = "h100-8b"
    fraction: float = 1.0
    seed: int = 1
    jobs: int = 1
    check: bool = False  # the winners by discrete events, too
    kept: tuple[Row, ...] = ()  # of earlier runs: other policies' rows are not made again, the rest stays


def run(options: Options) -> Iterator[list[Row]]:
    """After each trace all rows so far: every cell of it and of those before, and kept rows of other cells and models.
    Raises TraceError, OSError."""
    work = [(name, options) for name in _usable(options.traces or tuple(packed.names()))]
    rows: list[Row] = []
    for found in _each(work, options.jobs):
        rows += found
        made = {(row.trace, row.cold_start, row.model) for row in rows}
        yield [row for row in options.kept if (row.trace, row.cold_start, row.model) not in made] + rows


def _each(work: Sequence[tuple[str, Options]], jobs: int) -> Iterator[list[Row]]:
    if jobs <= 1 or len(work) <= 1:
        yield from map(_one, work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, work)


def _usable(names: Sequence[str]) -> list[str]:
    """Those that say when requests arrive; the others are told on standard error. Raises TraceError, OSError."""
    found = {name: source(name) for name in names}
    called = Counter(trace.name for trace in found.values())
    if twice := [name for name, count in called.items() if count > 1]:
        raise TraceError(f"two traces are called {twice[0]}: rows could not be told apart; rename a file")
    for name, trace in found.items():
        if isinstance(trace, Lengths):
            print(f"{name}: lengths without arrivals, left out", file=sys.stderr)
    return [name for name, trace in found.items() if not isinstance(trace, Lengths)]


def source(name: str) -> Trace | Series | Lengths:
    """A trace by its packed name or its path. Raises TraceError, OSError."""
    path = Path(name)
    if not path.suffix and not path.exists():
        path = packed.FOLDER / f"{name}.npz"
        if not path.exists():
            raise TraceError(f"{name}: neither a file nor one of {', '.join(builtin.loads())}")
    if not path.exists():
        raise TraceError(f"{name}: no such file; each trace has a --trace of its own")
    return read(path)


def _one(item: tuple[str, Options]) -> list[Row]:
    name, options = item
    found = source(name)
    if isinstance(found, Lengths):
        return []
    engine = profile.load(options.profile)
    lengths = packed.load(packed.FOLDER / f"{LENGTHS}.npz")
    if isinstance(lengths, Series):
        raise TraceError(f"{LENGTHS}: holds no lengths")
    part = found.first(options.fraction)
    if options.fraction < 1:
        part = replace(part, name=f"{part.name}@{options.fraction:g}")
    workload = demand.build(part, lengths, engine, options.seed)
    if (held := workload.mix.prompt + workload.mix.output) > engine.kv_tokens:
        raise TraceError(
            f"{name}: the mean request's {held:.0f} tokens exceed the profile's kvTokens, {engine.kv_tokens}"
        )
    rows = cells.run(workload, engine, options.grid, options.kept)
    if options.check and rows:
        rows.extend(_checked(part, lengths, rows, options))
    return rows


def _checked(part: Trace | Series, lengths: Lengths | Trace, rows: Sequence[Row], options: Options) -> list[Row]:
    """The winners by discrete events: of a trace itself, of a series one day of it."""
    engine = profile.load(options.profile)
    if isinstance(part, Series):
        return list(days.run(part, lengths, engine, rows, options.seed))
    trace, _ = demand.requests(part, lengths, engine, options.seed)
    return list(check.run(trace, engine, rows, options.seed))


def kept(folder: Path) -> tuple[Row, ...]:
    """The rows of earlier runs into a folder. Raises OSError, ValueError naming the file."""
    path = folder / RESULTS
    try:
        return tuple(msgspec.json.decode(path.read_bytes(), type=list[Row])) if path.exists() else ()
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} holds no results that can be kept: {error}") from error


def contradiction(folder: Path, command: str) -> str:
    """What of a command that resumes differs from the commands of the results that are there; empty: nothing."""
    log = folder / COMMANDS
    ours = _given(command)
    for line in log.read_text().splitlines() if log.exists() else ():
        theirs = _given(line)
        for option in SAME:
            if theirs.get(option, ours.get(option)) != ours.get(option):
                return f"{folder} holds results of {option} {theirs[option]}, not {ours.get(option)}"
    return ""


def _given(command: str) -> dict[str, str]:
    """Options and what follows each."""
    words = shlex.split(command)
    return dict(pairwise(words))


def write(rows: Sequence[Row], folder: Path, command: str) -> Path:
    """Write results.json and report.md; the report's path. The report tells all commands of one set of results."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / COMMANDS
    earlier = log.read_text().splitlines() if log.exists() and RESUME in command else []
    commands = [*(line for line in earlier if line != command), command]
    log.write_text("\n".join(commands) + "\n")
    plain = msgspec.to_builtins(list(rows))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in plain)
    (folder / RESULTS).write_text(f"[\n{lines}\n]\n")
    return report.write(rows, folder, commands)
