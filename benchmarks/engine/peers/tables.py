"""Records put together: what the report, the plots and results.json are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.engine.peers.records import Load, Record
from benchmarks.engine.peers.stats import Ratio, ratio

Figure = Callable[[Load], float]

FIGURES: dict[str, Figure] = {
    "tokens/s": lambda load: load.tokens_per_s,
    "TTFT p50, ms": lambda load: load.ttft_ms.p50,
    "TTFT p95, ms": lambda load: load.ttft_ms.p95,
    "ITL p50, ms": lambda load: load.itl_ms.p50,
    "ITL p95, ms": lambda load: load.itl_ms.p95,
    "ITL p99, ms": lambda load: load.itl_ms.p99,
    "CPU s per 1,000 tokens": lambda load: 1000 * load.cpu.total / load.output_tokens,
    "cores busy": lambda load: load.cpu.total / load.seconds,
    "cores of the client": lambda load: load.cpu.client / load.seconds,
    "cores of other programs": lambda load: load.cpu.foreign / load.seconds,
}
COMPARED = ("tokens/s", "TTFT p50, ms", "TTFT p95, ms", "ITL p50, ms", "CPU s per 1,000 tokens")


@dataclass(frozen=True)
class Loads:
    """The closed loops that ended without an error, by server, concurrency and round."""

    cells: dict[tuple[str, int], dict[int, Load]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Loads:
        """Those among the records."""
        found: dict[tuple[str, int], dict[int, Load]] = {}
        for record in records:
            if isinstance(record, Load) and not record.errors:
                found.setdefault((record.server, record.concurrency), {})[record.round] = record
        return cls(found)

    @property
    def servers(self) -> list[str]:
        """In the order of their first loop."""
        return list(dict.fromkeys(server for server, _ in self.cells))

    @property
    def concurrencies(self) -> list[int]:
        """Ascending."""
        return sorted({concurrency for _, concurrency in self.cells})

    def values(self, server: str, concurrency: int, figure: Figure) -> list[float]:
        """One for each round, in order."""
        rounds = self.cells.get((server, concurrency), {})
        return [figure(rounds[n]) for n in sorted(rounds)]

    def against(self, ours: str, theirs: str, concurrency: int, figure: Figure) -> Ratio | None:
        """Ours over theirs in the rounds that both have; None if there is none."""
        mine, other = self.cells.get((ours, concurrency), {}), self.cells.get((theirs, concurrency), {})
        rounds = sorted(mine.keys() & other.keys())
        if not rounds:
            return None
        return ratio([figure(mine[n]) for n in rounds], [figure(other[n]) for n in rounds])

    def agreement(self, ours: str, theirs: str) -> tuple[int, int]:
        """Answers to equal prompts whose first characters are equal, and how many were compared."""
        equal = total = 0
        for (server, concurrency), rounds in self.cells.items():
            if server != ours:
                continue
            for number, mine in rounds.items():
                other = self.cells.get((theirs, concurrency), {}).get(number)
                if other is not None:
                    total += len(mine.digests)
                    equal += sum(a == b for a, b in zip(mine.digests, other.digests, strict=True))
        return equal, total


def middle(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def number(value: float | None) -> str:
    """Three significant digits or the whole number; a dash for None."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
