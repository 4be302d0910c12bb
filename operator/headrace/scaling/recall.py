"""What was asked of a Model before anybody here looked, as a time series database remembers it. Pure.

It is believed only where it agrees with what the gateways tell of the last minute, and only as far back as it has no
hole. It widens the memory that forecasts are rehearsed on; fresh bins are never replaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

AGREE_S = 60.0  # of fresh data that the memory must agree with
TIMES, BESIDE = 2.0, 0.5  # the one may be so many times the other, and so many requests/s beside
GAP_S = 90.0  # between two points, from where nothing is known in between
MOST_RATE = 1e6  # requests/s; more cannot be


class Point(msgspec.Struct, frozen=True):
    """Requests/s around one moment."""

    at: float  # unix seconds
    rate: float


class Recalled(msgspec.Struct, frozen=True):
    """Requests/s of the bins that end where the fresh ones begin; empty: `detail` says why."""

    rates: tuple[float, ...]
    detail: str


def recall(points: Sequence[Point], fresh: Sequence[float], began: float, bin_s: float, most: int) -> Recalled:
    """At most so many bins before `began` (unix seconds), where the fresh bins begin, each of `bin_s` seconds."""
    usable = {p.at: p.rate for p in points if math.isfinite(p.at) and 0 <= p.rate <= MOST_RATE}
    known = sorted(usable.items())
    now = began + len(fresh) * bin_s
    if len(fresh) * bin_s < AGREE_S:
        return Recalled((), "too little was seen since to compare with")
    recent = [rate for at, rate in known if now - AGREE_S <= at <= now]
    if not recent:
        return Recalled((), f"nothing is known of the last {AGREE_S:.0f} s")
    bins = fresh[-round(AGREE_S / bin_s) :]
    told, seen = sum(recent) / len(recent), sum(bins) / len(bins)
    if told > TIMES * seen + BESIDE or seen > TIMES * told + BESIDE:
        return Recalled((), f"{told:.3g} requests/s are told of the last minute, {seen:.3g} were seen")
    rates: list[float] = []
    later = next((i for i, (at, _) in enumerate(known) if at >= began), len(known) - 1)
    for index in range(1, most + 1):
        at = began - (index - 0.5) * bin_s
        while later > 0 and known[later - 1][0] > at:
            later -= 1
        if later == 0 or known[later][0] - known[later - 1][0] > GAP_S or known[later][0] < at:
            break
        (before, low), (after, high) = known[later - 1], known[later]
        rates.append(low + (high - low) * (at - before) / (after - before))
    if not rates:
        return Recalled((), "nothing is known of the time before")
    return Recalled(tuple(reversed(rates)), f"{len(rates) * bin_s:.0f} s of load from before are remembered")
