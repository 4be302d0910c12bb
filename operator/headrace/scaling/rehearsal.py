"""Forecasts that are chosen by rehearsal: each way to size a fleet is replayed on the load of the last half hour.

A way (`Setting`) forecasts the load as its mean over some seconds, with or without its trend, takes headroom on it, and
keeps the largest answer of some time. Replayed with the measured cold start and the learned capacity, each has cost so
many replica-seconds and would have let so many requests come too late. A late request has a price, which rises while
the objective is missed and falls while it is exceeded (`budget`); the cheapest way wins. What would have come too late
whatever the way (`unavoidable`) counts for none. Nothing here is tuned to a load: headroom and hold are what the last
half hour asks for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from headrace.scaling.load import BIN_S

HEADROOMS = (0.75, 0.85, 0.95, 1.05, 1.2, 1.4, 1.7, 2.2)
FORECASTS = ((10.0, False), (30.0, False), (60.0, False), (60.0, True), (120.0, False), (300.0, False))
HOLDS_S = (60.0, 150.0, 300.0, 600.0, 1200.0)
LEAST_S = 200.0  # of history that is replayed before there is a choice
SPANS = 3.0  # of its mean that the replayed history holds, before a forecast is looked at
BETTER = 0.97  # of the present way's cost, from where another takes over
FIRST_PRICE = 2.0
STEEP = 30.0  # a way that lets a percentage point more be late than planned counts as that many percent dearer
AIM = 0.7  # of the requests that may be late are planned for
BUDGET_S = 900.0  # over which at least they are counted, so that one surge in a short history is no rule
EPSILON = 1e-9
GENEROUS = ((10.0, False), (60.0, True))  # forecasts of the most generous ways
MOST_MEAN_S = 60.0  # that it is at most
STEADY_BURST = 1.5  # times its mean that a steady load's busiest ten seconds have


class Setting(msgspec.Struct, frozen=True):
    """One way to size a fleet."""

    headroom: float = 0.85
    mean_s: float = 10.0
    trend: bool = False
    hold_s: float = 600.0

    def __str__(self) -> str:
        trend = " and its trend" if self.trend else ""
        return f"mean of {self.mean_s:.0f} s{trend} × {self.headroom:g}, held for {self.hold_s:.0f} s"


class Plant(msgspec.Struct, frozen=True):
    """What is sized."""

    capacity: float  # requests/s of one replica
    cold_start_s: float
    slack_s: float  # that a request may wait
    late: float  # share of the requests that may be late
    most: int = 1_000_000  # replicas that there may be


class Choice(msgspec.Struct, frozen=True):
    """The way that was chosen, and the share of the requests that it lets come too late in rehearsal."""

    setting: Setting = Setting()
    late: float | None = None  # None: never rehearsed


def settings() -> Iterator[Setting]:
    """All ways."""
    for mean_s, trend in FORECASTS:
        for hold_s in HOLDS_S:
            for headroom in HEADROOMS:
                yield Setting(headroom, mean_s, trend, hold_s)


def first_setting(arrivals: Sequence[float], plant: Plant) -> Setting:
    """The way before there is one to choose: a mean as long as a queue may even out, and more headroom the more the
    load bursts, as the largest burst is rarely among the first."""
    usual = Setting()
    mean_s = max((m for m, _ in FORECASTS if m <= max(usual.mean_s, plant.slack_s) and m <= MOST_MEAN_S))
    asked = [i for i, rate in enumerate(arrivals) if rate > 0]
    if not asked:
        return msgspec.structs.replace(usual, mean_s=mean_s)
    seen = arrivals[asked[0] : asked[-1] + 1]
    burst = max(_means(seen, _bins(usual.mean_s))) / (sum(seen) / len(seen))
    headroom = min(HEADROOMS[-1], usual.headroom * max(1.0, burst / STEADY_BURST))
    return msgspec.structs.replace(usual, mean_s=mean_s, headroom=round(headroom, 2))


def expected_rate(arrivals: Sequence[float], setting: Setting, cold_start_s: float) -> float:
    """Requests/s that the fleet is sized for now, before headroom. `arrivals` by bin, at least one."""
    hold = _bins(setting.hold_s)
    recent = arrivals[-(hold + 2 * _bins(2 * setting.mean_s)) :]
    return max(_forecasts(recent, setting.mean_s, setting.trend, cold_start_s)[-hold:])


def replicas(rate: float, setting: Setting, capacity: float) -> int:
    """How many replicas a rate takes."""
    return max(1, math.ceil(setting.headroom * rate / capacity - EPSILON))


def choose(
    arrivals: Sequence[float], plant: Plant, present: Choice, price: float, spared: Sequence[float] = ()
) -> Choice:
    """The way that would have been cheapest. A late request costs `price` times what it takes of a replica. `spared`:
    what was unavoidable, which has no part in the objective."""
    cold = _bins(plant.cold_start_s)
    if (len(arrivals) - cold) * BIN_S < LEAST_S:
        return present
    loads = [rate / plant.capacity for rate in arrivals]  # in replicas
    total = max(sum(loads[cold:]), EPSILON)
    counted = total * max(1.0, BUDGET_S / ((len(arrivals) - cold) * BIN_S))
    planned = AIM * plant.late + sum(spared) / counted

    def cost(paid: int, late: float) -> float:
        return paid * (1.0 + STEEP * max(0.0, late / counted - planned)) + price * late

    way = present.setting
    wanted, serving = _fleet(loads, (way.mean_s, way.trend, way.hold_s), plant.cold_start_s)
    late = sum(_late(loads[cold:], serving[cold:], way.headroom, plant))
    best, least = Choice(way, late / total), BETTER * cost(_paid(wanted[cold:], way.headroom, plant.most), late)
    for mean_s, trend in FORECASTS:
        if SPANS * mean_s > (len(arrivals) - cold) * BIN_S:
            continue
        for hold_s in HOLDS_S:
            wanted, serving = _fleet(loads, (mean_s, trend, hold_s), plant.cold_start_s)
            for headroom in HEADROOMS:  # with more of it more is paid and less is late
                paid = _paid(wanted[cold:], headroom, plant.most)
                if paid >= least:
                    break
                late = sum(_late(loads[cold:], serving[cold:], headroom, plant))
                if cost(paid, late) < least:
                    best, least = Choice(Setting(headroom, mean_s, trend, hold_s), late / total), cost(paid, late)
                if late <= 0:
                    break
    return best


def _fleet(
    loads: Sequence[float], way: tuple[float, bool, float], cold_start_s: float
) -> tuple[list[float], list[float]]:
    """What is wanted in each bin, and what serves: what was wanted all through the cold start before it."""
    mean_s, trend, hold_s = way
    wanted = _largest(_forecasts(loads, mean_s, trend, cold_start_s), _bins(hold_s))
    return wanted, [-x for x in _largest([-x for x in wanted], _bins(cold_start_s) + 1)]


def unavoidable(arrivals: Sequence[float], plant: Plant) -> list[float]:
    """Load in replica-bins, by bin after the first cold start, that comes too late however generously the fleet is
    sized for what came before: nothing let expect it, or it takes more replicas than there may be."""
    cold = _bins(plant.cold_start_s)
    if len(arrivals) <= cold:
        return []
    loads = [rate / plant.capacity for rate in arrivals]
    found: list[list[float]] = []
    for mean_s, trend in GENEROUS:
        _, serving = _fleet(loads, (mean_s, trend, HOLDS_S[-1]), plant.cold_start_s)
        found.append(_late(loads[cold:], serving[cold:], HEADROOMS[-1], plant)[:-1])
    return [min(bins) for bins in zip(*found, strict=True)]


def _paid(wanted: Sequence[float], headroom: float, most: int) -> int:
    """Replica-bins."""
    return sum([min(most, math.ceil(headroom * x - EPSILON) or 1) for x in wanted])


def _late(loads: Sequence[float], serving: Sequence[float], headroom: float, plant: Plant) -> list[float]:
    """Load in replica-bins that waits longer than it may, by bin, and what waits at the end: a fleet too small is late
    in time."""
    queue, ceil, slack, most = 0.0, math.ceil, plant.slack_s / BIN_S, plant.most
    late: list[float] = []
    for load, x in zip(loads, serving, strict=True):
        serves = ceil(headroom * x - EPSILON) or 1
        if serves > most:
            serves = most
        queue += load - serves
        if queue <= 0.0:
            queue = 0.0
        elif queue > serves * slack:
            late.append(queue - serves * slack)
            queue = serves * slack
            continue
        late.append(0.0)
    late.append(queue)
    return late


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
