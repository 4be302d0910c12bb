"""Medians, ratios and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

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
    mine, other = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    chosen = np.random.default_rng(seed).integers(len(mine), size=(DRAWS, len(mine)))
    drawn = sorted((np.median(mine[chosen], axis=1) / np.median(other[chosen], axis=1)).tolist())
    tail = 100 * (1 - LEVEL) / 2
    return Ratio(median(ours) / median(theirs), percentile(drawn, tail), percentile(drawn, 100 - tail))
