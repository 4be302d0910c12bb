"""What samples say of the service level: queue age and goodput by class."""

from __future__ import annotations

import msgspec

from headrace.scaling.types import Policy, Sample
from headrace.scaling.window import Window


class Goodput(msgspec.Struct, frozen=True):
    """How requests ended in a span of time. Nothing offered = unknown, neither 0 nor 1."""

    good: int = 0
    offered: int = 0
    admitted: int = 0
    shed: int = 0

    @property
    def percent(self) -> int | None:
        """Good of offered, rounded down."""
        return None if self.offered == 0 else 100 * min(self.good, self.offered) // self.offered


def goodput(policy: Policy, window: Window, now: float, span_s: float | None = None) -> dict[str, Goodput]:
    """By class of the policy, over its goodput window or the last `span_s` (at most five minutes)."""
    flow = window.flow(now - (policy.goodput_window_s if span_s is None else span_s))
    found = {}
    for item in policy.classes:
        counters = flow.get(item.name)
        found[item.name] = (
            Goodput()
            if counters is None
            else Goodput(counters.good, counters.offered, counters.admitted, counters.shed)
        )
    return found


def queue_ages(policy: Policy, sample: Sample) -> dict[str, float]:
    """Age in seconds of the oldest request of each class that has not begun; classes without one are absent.

    Engines do not tell classes apart. They take requests by priority, so what waits in one longest is of the lowest
    class that has requests in flight.
    """
    by_name = {c.name: c for c in sample.classes}
    ages = {}
    for item in policy.classes:
        known = by_name.get(item.name)
        if known is not None and known.oldest_age_s is not None:
            ages[item.name] = known.oldest_age_s
    wait = sample.engine_wait_s
    if wait is not None and policy.classes:
        flying = [c for c in policy.classes if c.name in by_name and by_name[c.name].in_flight > 0]
        lowest = min(flying or policy.classes, key=lambda c: c.priority).name
        ages[lowest] = max(ages.get(lowest, 0.0), wait)
    return ages
