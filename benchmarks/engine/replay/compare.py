"""What clients saw beside what the simulator says they see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.bench.lone import Tokens
from headrace.bench.trace import Floats

ALLOWED = 0.15  # of difference
QUANTILES = (50, 95)


@dataclass(frozen=True)
class Seen:
    """A real replay."""

    ttft: Floats  # seconds, by request
    gaps: Floats  # seconds between two events with text of one request


@dataclass(frozen=True)
class Figure:
    """One line of the comparison."""

    name: str
    real: float  # seconds
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over real."""
        return self.simulated / self.real if self.real > 0 else float("inf")

    @property
    def holds(self) -> bool:
        """They differ by at most what is allowed."""
        return abs(self.ratio - 1.0) <= ALLOWED


def figures(real: Seen, simulated: Tokens) -> list[Figure]:
    """Medians and 95th percentiles of time to first token and of the gaps between tokens."""
    pairs = (("TTFT", real.ttft, simulated.ttft), ("ITL", real.gaps, simulated.gaps))
    return [
        Figure(f"{name} p{q}", float(np.percentile(ours, q)), float(np.percentile(theirs, q)))
        for name, ours, theirs in pairs
        for q in QUANTILES
    ]


def table(found: Sequence[Figure]) -> str:
    """Markdown."""
    lines = ["| | real ms | simulated ms | simulated / real | within 15 % |", "|---|---|---|---|---|"]
    for one in found:
        lines.append(
            f"| {one.name} | {1000 * one.real:.1f} | {1000 * one.simulated:.1f} | {one.ratio:.3f} | "
            f"{'yes' if one.holds else 'no'} |"
        )
    return "\n".join(lines)
