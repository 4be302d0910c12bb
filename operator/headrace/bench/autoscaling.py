"""The autoscaling benchmark as a whole: traces in, results.json and report.md out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.bench import cells, check, demand, packed, profile, report
from headrace.bench.cells import Grid, Row
from headrace.bench.readers import TraceError, read
from headrace.bench.trace import Lengths, Series, Trace

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


def run(options: Options) -> list[Row]:
    """Every cell of every trace. Raises TraceError, OSError."""
    names = options.traces or tuple(packed.names())
    usable = [name for name in names if not isinstance(source(name), Lengths)]
    for name in sorted(set(names) - set(usable)):
        print(f"{name}: lengths without arrivals, left out", file=sys.stderr)
    work = [(name, options) for name in usable]
    if options.jobs <= 1 or len(work) <= 1:
        return [row for item in work for row in _one(item)]
    with ProcessPoolExecutor(options.jobs) as pool:
        return [row for rows in pool.map(_one, work) for row in rows]


def source(name: str) -> Trace | Series | Lengths:
    """A trace by its packed name or its path. Raises TraceError, OSError."""
    path = Path(name)
    if not path.suffix and not path.exists():
        path = packed.FOLDER / f"{name}.npz"
        if not path.exists():
            raise TraceError(f"{name}: neither a file nor one of {', '.join(packed.names())}")
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
    workload = demand.build(part, lengths, engine, options.seed)
    rows = cells.run(workload, engine, options.grid)
    if options.check and rows:
        trace, _ = demand.requests(part, lengths, engine, options.seed)
        rows.extend(check.run(trace, engine, rows, options.seed))
    return rows


def write(rows: Sequence[Row], folder: Path, command: str) -> Path:
    """Write results.json and report.md; the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = msgspec.to_builtins(list(rows))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in plain)
    (folder / "results.json").write_text(f"[\n{lines}\n]\n")
    return report.write(rows, folder, command)
