"""Medians, ratios and their intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

DRAWS = 4000  # of the bootstrap
LEVEL = 0.95


class Ratio(NamedTuple):
    """Ours over theirs, with the bounds of its interval."""

    value: float
    low: float
    high: float


def percentile(ordered: Sequence[float], p: float) -> float:
    """The value at `p` percent of an ordered sequence, between its neighbours."""
    at = (len(ordered) - 1) * p / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio:
    """Median of ours over median of theirs; entry i of both is the same round.

    The interval is a paired bootstrap: rounds are drawn with replacement, both sides together, so that what a whole
    round had in common (the prompts, the hour) is no part of the spread. One round has an interval of its own value.
    Raises ValueError if there is no round, or one side misses some.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds stand against {len(theirs)}")
    draw = random.Random(seed)
    rounds = range(len(ours))
    values = []
    for _ in range(DRAWS if len(ours) > 1 else 1):
        chosen = draw.choices(rounds, k=len(ours)) if len(ours) > 1 else [0]
        values.append(median(ours[i] for i in chosen) / median(theirs[i] for i in chosen))
    values.sort()
    tail = 100 * (1 - LEVEL) / 2
    return Ratio(median(ours) / median(theirs), percentile(values, tail), percentile(values, 100 - tail))
