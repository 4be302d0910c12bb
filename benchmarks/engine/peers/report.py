"""`report.md`, `results.json` and the plots from the records of a folder; can be made again without measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.engine.peers import pool, sections
from benchmarks.engine.peers.plan import Settings
from benchmarks.engine.peers.records import Load, Pool, Record
from benchmarks.engine.peers.servers import HEADRACE, SERVERS
from benchmarks.engine.peers.tables import COMPARED, FIGURES, Loads, middle, number, table

from headrace.bench.svg import Axes, Line, lines


@dataclass(frozen=True)
class Result:
    """What one folder holds."""

    settings: Settings
    machine: Mapping[str, str]
    records: Sequence[Record]
    missing: Mapping[str, str]  # servers that could not be measured, and why

    @property
    def loads(self) -> Loads:
        """The closed loops."""
        return Loads.of(self.records)


def write(result: Result, folder: Path) -> None:
    """All files."""
    (folder / "report.md").write_text(markdown(result))
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary(result)), indent=1) + b"\n")
    for name, text in plots(result).items():
        (folder / name).write_text(text)


def markdown(result: Result) -> str:
    """The report."""
    loads = result.loads
    parts = [
        _head(result),
        "## Closed loop: 128 tokens in, 64 out\n\n![tokens/s](throughput.svg)\n![TTFT](ttft.svg)\n",
        *(_figure(loads, name) for name in FIGURES if not name.startswith("cores")),
        sections.ratios(loads),
        sections.floors(loads, result.records),
        sections.gaps(result.records),
        sections.prefixes(result.records),
        sections.pools(result.records),
        sections.starts(result.records),
        sections.steps(result.records),
        sections.bounds(loads),
        sections.profiles(result.records),
        sections.equal_work(loads),
        sections.errors(result.records),
    ]
    return "\n".join(part for part in parts if part)


def _head(result: Result) -> str:
    settings = result.settings
    versions = ", ".join(f"{name} {SERVERS[name].version}" for name in settings.servers)
    left_out = "".join(f"\n**{name} is missing**: {why}\n" for name, why in result.missing.items())
    rows = [[key, value] for key, value in result.machine.items()]
    return (
        "# The engine beside its peers\n\n"
        f"{settings.rounds} rounds, each server started {settings.starts} times, "
        f"c = {', '.join(map(str, settings.concurrency))}; {versions}.\n"
        "All servers of a start are loaded, and one is awake at a time (the others are stopped), with a thread for "
        "each CPU; the client shares the CPUs. Each closed loop is run by one server right after the other, and "
        "another one begins each time. Every round has new prompts, the same ones for all servers. Greedy; figures are "
        f"medians over rounds, with the least and the largest round in brackets.\n{left_out}\n" + table(["", ""], rows)
    )


def _figure(loads: Loads, name: str) -> str:
    """One table: servers by concurrency."""
    rows = []
    for server in loads.servers:
        row = [server]
        for concurrency in loads.concurrencies:
            values = loads.values(server, concurrency, FIGURES[name])
            spread = f" ({number(min(values))}–{number(max(values))})" if values else ""
            row.append(number(middle(values)) + spread)
        rows.append(row)
    return f"### {name}\n\n" + table([name, *(f"c={c}" for c in loads.concurrencies)], rows)


def summary(result: Result) -> dict[str, Any]:
    """results.json: medians, ratios with their intervals, and every record but the digests."""
    loads = result.loads
    medians = {
        server: {
            str(c): {name: middle(loads.values(server, c, figure)) for name, figure in FIGURES.items()}
            for c in loads.concurrencies
        }
        for server in loads.servers
    }
    ratios = {
        server: {
            str(c): {name: loads.against(HEADRACE, server, c, FIGURES[name]) for name in COMPARED}
            for c in loads.concurrencies
        }
        for server in loads.servers
        if server != HEADRACE
    }
    return {
        "settings": result.settings,
        "machine": result.machine,
        "versions": {name: SERVERS[name].version for name in result.settings.servers},
        "missing": result.missing,
        "medians": medians,
        "headrace over peer: median, low, high": ratios,
        "records": [
            msgspec.structs.replace(r, digests=[]) if isinstance(r, Load | Pool) else r for r in result.records
        ],
    }


def plots(result: Result) -> dict[str, str]:
    """SVG files by name."""
    loads = result.loads
    found = {}
    for name, figure, title in (
        ("throughput.svg", "tokens/s", "Output tokens/s by concurrency, medians"),
        ("ttft.svg", "TTFT p50, ms", "Time to first token by concurrency, medians of p50"),
        ("cpu.svg", "CPU s per 1,000 tokens", "CPU seconds of the server per 1,000 output tokens"),
    ):
        found[name] = lines(Axes(title, "requests at a time", figure), _series(loads, figure))
    pools = [record for record in result.records if isinstance(record, Pool) and not record.errors]
    if pools:
        sizes = sorted({record.pages for record in pools})
        speed = [middle([r.output_tokens / r.seconds for r in pools if r.pages == pages]) or 0.0 for pages in sizes]
        axes = Axes(
            f"Headrace, c={pool.CONCURRENCY}: tokens/s by pages of KV ({pool.DEMAND} hold all)", "pages", "tokens/s"
        )
        found["pool.svg"] = lines(axes, [Line("tokens/s", sizes, speed)])
    return found


def _series(loads: Loads, figure: str) -> list[Line]:
    series = []
    for server in loads.servers:
        points = [(c, middle(loads.values(server, c, FIGURES[figure]))) for c in loads.concurrencies]
        known = [(float(c), y) for c, y in points if y is not None]
        series.append(Line(server, [x for x, _ in known], [y for _, y in known]))
    return series
