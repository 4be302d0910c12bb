"""What every rule of scaling may look at, each figure computed once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from headrace.scaling.capacity import Capacity, capacity
from headrace.scaling.rehearsal import Plant, Setting, choose
from headrace.scaling.signals import Goodput, goodput, queue_ages
from headrace.scaling.types import ClassPolicy, Memory, Policy, Replicas, Sample
from headrace.scaling.window import FLOW_S, Window

CHOOSE_S = 60.0  # between two choices of the way to forecast
MOST_REPLICAS = 1_000_000
MOST_SECONDS = 86_400.0


@dataclass(frozen=True)
class Context:
    """What every rule may look at."""

    policy: Policy
    window: Window
    replicas: Replicas
    now: float
    memory: Memory

    @cached_property
    def sample(self) -> Sample | None:
        """The newest sample if it is fresh."""
        latest = self.window.latest
        fresh = latest is not None and 0 <= self.now - latest.at <= self.policy.stale_after_s
        return latest if fresh and latest is not None and latest.gateways else None

    @cached_property
    def missing(self) -> str | None:
        """What is missing for a step down; None: nothing."""
        sample = self.sample
        if sample is None:
            return "no fresh sample"
        if sample.faults:
            rest = f" and {len(sample.faults) - 1} more" if len(sample.faults) > 1 else ""
            return f"{sample.faults[0]}{rest}"
        return implausible(self.replicas, self.now)

    @cached_property
    def ages(self) -> dict[str, float]:
        """Queue age by class, of the fresh sample."""
        return {} if self.sample is None else queue_ages(self.policy, self.sample)

    @cached_property
    def goodput(self) -> dict[str, Goodput]:
        """Goodput by class."""
        return goodput(self.policy, self.window, self.now)

    @cached_property
    def capacity(self) -> Capacity:
        """What one replica takes."""
        return capacity(self.window.load.blocks(), self.policy.max_sequences)

    @cached_property
    def arrivals(self) -> list[float]:
        """Requests/s in the last bins."""
        return self.window.load.arrivals(self.now)

    @cached_property
    def plant(self) -> Plant | None:
        """What is sized; None while a part of it is unknown."""
        cold, each, classes = self.replicas.cold_start_s, self.capacity.per_second, self.policy.classes
        if each is None or cold is None or not classes or implausible(self.replicas, self.now) is not None:
            return None
        late = 1 - max(c.objective_percent for c in classes) / 100
        return Plant(each * self.memory.fill, cold, min(c.ttft_s for c in classes), late)

    @cached_property
    def spare(self) -> bool:
        """True where it is known what a replica takes and all classes have met their objective of late."""
        if self.plant is None:
            return False
        seen = goodput(self.policy, self.window, self.now, FLOW_S)
        return all(
            (percent := seen[c.name].percent) is not None and percent >= c.objective_percent
            for c in self.policy.classes
            if seen[c.name].offered or len(self.policy.classes) == 1
        )

    @property
    def chooses(self) -> bool:
        """True where it is time to choose the way to forecast anew."""
        at = self.memory.chosen_at
        return self.plant is not None and (at is None or not 0 <= self.now - at < CHOOSE_S)

    @cached_property
    def setting(self) -> Setting:
        """The way to forecast."""
        present = self.memory.setting or Setting()
        return choose(self.arrivals, self.plant, present) if self.plant is not None and self.chooses else present

    @property
    def settle_s(self) -> float:
        """Seconds for which fewer replicas must have sufficed: what was learned, else not less than a cold start."""
        if self.plant is not None:
            return self.setting.hold_s
        return max(self.policy.down_after_s, self.replicas.cold_start_s or 0.0)

    @property
    def judged_s(self) -> float:
        """Seconds that a step up is given to show its effect before a step down."""
        if self.plant is not None:
            return max(self.plant.cold_start_s, self.policy.up_interval_s)
        return self.settle_s

    @property
    def since_change(self) -> float:
        """Seconds since the number of replicas changed; infinite if nobody knows."""
        return math.inf if self.replicas.changed_at is None else max(0.0, self.now - self.replicas.changed_at)

    def low_goodput(self) -> Iterator[tuple[ClassPolicy, Goodput, int]]:
        """Classes whose goodput is known and below the objective."""
        for item in self.policy.classes:
            seen = self.goodput[item.name]
            percent = seen.percent
            enough = seen.offered >= self.policy.goodput_min_offered
            if enough and percent is not None and percent < item.objective_percent:
                yield item, seen, percent


def implausible(replicas: Replicas, now: float) -> str | None:
    """The first figure about replicas that cannot be; None: all can."""
    for name in ("current", "ready", "pending", "unschedulable", "terminating"):
        if not 0 <= getattr(replicas, name) <= MOST_REPLICAS:
            return f"replicas.{name} of {getattr(replicas, name)} cannot be"
    if replicas.cold_start_s is not None and not 0 <= replicas.cold_start_s <= MOST_SECONDS:
        return f"a cold start of {replicas.cold_start_s} s cannot be"
    if replicas.changed_at is not None and not 0 < replicas.changed_at <= now + MOST_SECONDS:
        return f"replicas.changedAt of {replicas.changed_at} cannot be"
    return None
