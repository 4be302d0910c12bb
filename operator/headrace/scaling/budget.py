"""The error budget: how many requests may be late, how many were, and what that makes of a late request's price. Pure.

The price is in units of what a request takes of a replica: at 4, a replica-second more is worth it if it saves a
quarter of the requests that a busy replica would serve in it. It rises while a class misses its objective and falls
while all exceed theirs, so that no replicas are paid for attainment that nobody asked for, and none are spared below
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from headrace.scaling.signals import Goodput

LEAST_PRICE, MOST_PRICE = 1.5, 300.0
SPENT = 0.9  # of the requests that may be late, from where the price rises
PACE_UP, PACE_DOWN = 2.0, 3.0  # growth of the price's logarithm with a usual minute's requests late, beyond those
LEAST_OFFERED = 10  # requests that say something


class Spending(msgspec.Struct, frozen=True):
    """Of one class: what ended in the last minute, and in the last five."""

    late: float  # share of the requests that may be late
    minute: Goodput
    minutes: Goodput
    minutes_count: float  # how many minutes the second is of


def bad(seen: Goodput) -> int:
    """Requests that were not good."""
    return max(0, seen.offered - seen.good)


def price_after(price: float, classes: Iterable[Spending], waited: bool, spared: float = 0.0) -> float:
    """The price a minute later. `waited`: something had to wait; otherwise only what was shed is for want of
    replicas. `spared`: requests of the minute that no way to size the fleet would have saved."""
    beyond = None
    for item in classes:
        usual = max(item.minutes.offered / max(item.minutes_count, 1e-9), LEAST_OFFERED)
        missed = max(0.0, (bad(item.minute) if waited else item.minute.shed) - spared)
        share = (missed - SPENT * item.late * item.minute.offered) / usual
        beyond = share if beyond is None else max(beyond, share)
    if beyond is None:
        return price
    pace = PACE_UP if beyond > 0 else PACE_DOWN
    return min(max(price * math.exp(pace * max(-1.0, min(beyond, 1.0))), LEAST_PRICE), MOST_PRICE)
