"""Forecasts that are chosen by rehearsal: each way to size a fleet is replayed on the load of the last half hour.

A way (`Setting`) forecasts the load as its mean over some seconds, with or without its trend, takes headroom on it, and
keeps the largest answer of some time. Replayed with the measured cold start and the learned capacity, each has cost so
many replica-seconds and would have let so many requests come too late. The cheapest wins; what it misses of the
objective makes it dearer. Nothing here is tuned to a load: headroom and hold are what the last half hour asks for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from headrace.scaling.load import BIN_S

HEADROOMS = (0.85, 0.95, 1.05, 1.2, 1.45, 1.8)
FORECASTS = ((10.0, False), (60.0, False), (60.0, True), (120.0, False))
HOLDS_S = (60.0, 150.0, 300.0, 600.0)
LEAST_S = 300.0  # of history before there is a choice
PRICE = 30.0  # a way that misses the objective by a percentage point counts as that many percent dearer
BETTER = 0.97  # of the present way's price, from where another takes over
EPSILON = 1e-9


class Setting(msgspec.Struct, frozen=True):
    """One way to size a fleet."""

    headroom: float = 1.05
    mean_s: float = 60.0
    trend: bool = False
    hold_s: float = 300.0

    def __str__(self) -> str:
        trend = " and its trend" if self.trend else ""
        return f"mean of {self.mean_s:.0f} s{trend} × {self.headroom:g}, held for {self.hold_s:.0f} s"


class Plant(msgspec.Struct, frozen=True):
    """What is sized."""

    capacity: float  # requests/s of one replica
    cold_start_s: float
    slack_s: float  # that a request may wait
    late: float  # share of the requests that may be late


def settings() -> Iterator[Setting]:
    """All ways."""
    for mean_s, trend in FORECASTS:
        for hold_s in HOLDS_S:
            for headroom in HEADROOMS:
                yield Setting(headroom, mean_s, trend, hold_s)


def forecast(arrivals: Sequence[float], setting: Setting, cold_start_s: float) -> list[float]:
    """Requests/s that each bin's fleet is sized for, before headroom: forecasts, each held."""
    return _largest(_forecasts(arrivals, setting.mean_s, setting.trend, cold_start_s), _bins(setting.hold_s))


def replicas(rate: float, setting: Setting, capacity: float) -> int:
    """How many replicas a rate takes."""
    return max(1, math.ceil(setting.headroom * rate / capacity - EPSILON))


def choose(arrivals: Sequence[float], plant: Plant, present: Setting) -> Setting:
    """The way that would have been cheapest."""
    if len(arrivals) * BIN_S < LEAST_S:
        return present
    best, least, known = present, math.inf, math.inf
    cold = _bins(plant.cold_start_s)
    for mean_s, trend in FORECASTS:
        forecasts = _forecasts(arrivals, mean_s, trend, plant.cold_start_s)
        for hold_s in HOLDS_S:
            wanted = _largest(forecasts, _bins(hold_s))
            ready = [-x for x in _largest([-x for x in wanted], cold + 1)]  # wanted all through the cold start
            for headroom in HEADROOMS:
                price = _price(arrivals, [headroom / plant.capacity * x for x in wanted],
                               [headroom / plant.capacity * x for x in ready], plant)  # fmt: skip
                setting = Setting(headroom, mean_s, trend, hold_s)
                if price < least:
                    best, least = setting, price
                if setting == present:
                    known = price
    return best if least < BETTER * known else present


def _price(arrivals: Sequence[float], wanted: Sequence[float], ready: Sequence[float], plant: Plant) -> float:
    """Replica-bins of a fleet, dearer by what it misses of the objective."""
    cost, late, queue, ceil = 0, 0.0, 0.0, math.ceil
    taken, patience = plant.capacity * BIN_S, plant.capacity * plant.slack_s
    for arrived, want, serving in zip(arrivals, wanted, ready, strict=True):
        cost += ceil(want - EPSILON) or 1
        serves = ceil(serving - EPSILON) or 1
        queue += arrived * BIN_S - serves * taken
        if queue <= 0.0:
            queue = 0.0
        elif queue > serves * patience:
            late += queue - serves * patience
            queue = serves * patience
    missed = late / max(sum(arrivals) * BIN_S, EPSILON) - plant.late
    return cost * (1.0 + PRICE * max(0.0, missed))


def _forecasts(arrivals: Sequence[float], mean_s: float, trend: bool, cold_start_s: float) -> list[float]:
    """The load expected a cold start after each bin."""
    means = _means(arrivals, _bins(mean_s))
    if not trend:
        return means
    longer = _means(arrivals, _bins(2 * mean_s))
    ahead = min(cold_start_s, 2 * mean_s) / (mean_s / 2 + BIN_S / 2)
    return [m + ahead * max(0.0, m - before) for m, before in zip(means, longer, strict=True)]


def _means(values: Sequence[float], width: int) -> list[float]:
    """Of the last `width` values, or of those there are."""
    sums = [0.0, *accumulate(values)]
    return [(sums[i] - sums[max(0, i - width)]) / min(i, width) for i in range(1, len(sums))]


def _largest(values: Sequence[float], width: int) -> list[float]:
    """Of the last `width` values."""
    found, falling = [], deque[tuple[int, float]]()
    for i, value in enumerate(values):
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((i, value))
        if falling[0][0] <= i - width:
            falling.popleft()
        found.append(falling[0][1])
    return found


def _bins(seconds: float) -> int:
    return max(1, round(seconds / BIN_S))
