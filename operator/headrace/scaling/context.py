"""What every rule of scaling may look at, each figure computed once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from headrace.scaling.budget import LEAST_PRICE, Spending, bad, price_after
from headrace.scaling.capacity import Capacity
from headrace.scaling.load import BIN_S
from headrace.scaling.measured import by_step_times
from headrace.scaling.rehearsal import BUDGET_S, Choice, Plant, Setting, choose, first_setting, unavoidable
from headrace.scaling.signals import Goodput, goodput, queue_ages
from headrace.scaling.types import ClassPolicy, Memory, Policy, Replicas, Sample
from headrace.scaling.window import FLOW_S, Window

CHOOSE_S = 60.0  # between two choices of the way to forecast
WORSE = 2.0  # times what was foreseen, from where the forecast is not trusted alone
SHORT_COLD_S = 30.0  # with no longer a cold start new replicas save what waits now
HUMBLED = 0.99  # of what the step times say, up to where service taught something else
SURGES = 0.001  # of the load, that comes too late whatever the way, from where a load is not taken for an even one
STUCK_COLD_STARTS = 2.0  # after which a replica that is not ready is not counted on
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
        """What one replica takes: learned from service, before that by the engines' own step times."""
        return self.window.load.capacity(self.policy.max_sequences, self.profile)

    @cached_property
    def profile(self) -> Capacity:
        """What one replica takes by the engines' step times, within the strictest target of the classes that were
        asked for of late."""
        flow = self.window.flow(self.now - FLOW_S)
        targets = [(c.name in flow, c.tpot_s) for c in self.policy.classes if c.tpot_s is not None]
        asked = [tpot for seen, tpot in targets if seen] or [tpot for _, tpot in targets]
        engines = self.sample.engines if self.sample is not None else ()
        answers = self.window.load.answers
        return by_step_times(engines, answers, self.policy.max_sequences, min(asked, default=None))

    @cached_property
    def arrivals(self) -> list[float]:
        """Requests/s in the last bins."""
        return self.window.load.arrivals(self.now)

    @cached_property
    def remembered(self) -> list[float]:
        """The arrivals, and those of before that a time series database remembered."""
        return self.window.load.remembered(self.now)

    @property
    def recalls(self) -> bool:
        """True where something was recalled."""
        return len(self.remembered) > len(self.arrivals)

    @cached_property
    def unsettled(self) -> list[float]:
        """The load that a forecast may size for: that after a step down which no forecast had part in.

        Such a step found that fewer replicas suffice. Without this, what is learned a moment later would size for the
        load that had just ended, and the replica would come back for nobody.
        """
        since = self.memory.settled_at
        if since is None or since > self.now:
            return self.remembered
        whole = math.floor(self.now / BIN_S) - math.ceil(since / BIN_S)
        return self.remembered[-whole:] if whole > 0 else []

    @cached_property
    def plant(self) -> Plant | None:
        """What is sized; None while a part of it is unknown."""
        cold, each, classes = self.replicas.cold_start_s, self.capacity.per_second, self.policy.classes
        if each is None or cold is None or not classes or implausible(self.replicas, self.now) is not None:
            return None
        late = 1 - max(c.objective_percent for c in classes) / 100
        most = max(1, self.policy.max_replicas)
        return Plant(each * self.memory.fill, cold, min(c.ttft_s for c in classes), late, most)

    @cached_property
    def overspent(self) -> str | None:
        """Which class has had more late requests of late than it may, and than the forecast foresaw; None: no class."""
        foreseen = self.choice.late or 0.0
        for item in self.policy.classes:
            seen = self.lately[item.name]
            late = 1 - item.objective_percent / 100
            most = min(max(late, WORSE * foreseen), WORSE * late)
            if seen.offered >= self.policy.goodput_min_offered and bad(seen) > most * seen.offered:
                return f"{item.name} missed {100 * bad(seen) / seen.offered:.0f} % of late, {100 * most:.0f} % may be"
        return None

    @cached_property
    def lately(self) -> dict[str, Goodput]:
        """Goodput by class over five minutes."""
        return goodput(self.policy, self.window, self.now, FLOW_S)

    @property
    def chooses(self) -> bool:
        """True where it is time to choose the way to forecast anew."""
        at = self.memory.chosen_at
        return self.plant is not None and (at is None or not 0 <= self.now - at < CHOOSE_S)

    @cached_property
    def price(self) -> float:
        """Of a late request; a new one whenever a way to forecast is chosen."""
        if not self.chooses or self.memory.chosen_at is None:
            return self.memory.price
        minute = goodput(self.policy, self.window, self.now, CHOOSE_S)
        seen_s = min(FLOW_S, self.now - (self.window.first_at or self.now))
        spent = [
            Spending(1 - c.objective_percent / 100, minute[c.name], self.lately[c.name], seen_s / CHOOSE_S)
            for c in self.policy.classes
            if minute[c.name].offered
        ]
        return price_after(self.memory.price, spent, self.window.load.waited, self._spared_last(CHOOSE_S))

    @cached_property
    def spared(self) -> list[float]:
        """What no way to size the fleet would have saved, in replica-bins, by bin after the first cold start."""
        return [] if self.plant is None else unavoidable(self.remembered, self.plant)

    @property
    def at_ease(self) -> bool:
        """The objective is exceeded although service taught that a replica takes less than the engines' step times say,
        by a load that was long enough seen to be an even one; and a replica that turned out to be missing would soon
        be there."""
        plant, load = self.plant, self.remembered
        if plant is None or self.price > LEAST_PRICE or plant.cold_start_s > SHORT_COLD_S or not self._good_minute:
            return False
        taught, told = self.capacity.per_second, self.profile.per_second
        if taught is None or told is None or taught > HUMBLED * told:
            return False
        return len(load) * BIN_S >= BUDGET_S and sum(self.spared) <= SURGES * sum(load) / plant.capacity

    @property
    def _good_minute(self) -> bool:
        """Something was asked for in the last minute, and no class had more late requests than it may."""
        minute = goodput(self.policy, self.window, self.now, CHOOSE_S)
        asked = [c for c in self.policy.classes if minute[c.name].offered]
        late = (bad(minute[c.name]) > (1 - c.objective_percent / 100) * minute[c.name].offered for c in asked)
        return bool(asked) and not any(late)

    def _spared_last(self, span_s: float) -> float:
        """Requests of the last seconds that nothing would have saved: all of them within the first cold start."""
        bins = round(span_s / BIN_S)
        if self.plant is None:
            return 0.0
        if len(self.spared) < bins:
            return math.inf
        return sum(self.spared[-bins:]) * self.plant.capacity * BIN_S

    @cached_property
    def choice(self) -> Choice:
        """The way to forecast."""
        present = self.memory.choice
        if self.plant is None or not self.chooses:
            return present
        return choose(self.remembered, self.plant, present, self.price, self.spared)

    @property
    def setting(self) -> Setting:
        """The way to forecast, also before there is one to choose."""
        if self.choice.late is not None or self.plant is None:
            return self.choice.setting
        return first_setting(self.arrivals, self.plant)

    @property
    def settle_s(self) -> float:
        """Seconds for which fewer replicas must have sufficed: what was learned, else not less than a cold start."""
        usual = max(self.policy.down_after_s, self.replicas.cold_start_s or 0.0)
        if self.plant is None or self.choice.late is None:
            return usual
        hold = self.choice.setting.hold_s
        return max(hold, usual) if self.recalls else hold  # what was recalled makes no window shorter

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

    @property
    def stuck(self) -> int:
        """Replicas that are no supply any more, as they should have been ready twice over. No more than are ready, so
        that what keeps all of them from starting does not ask for ever more."""
        replicas, cold = self.replicas, self.replicas.cold_start_s
        if cold is None or math.isinf(self.since_change) or not self.since_change > max(STUCK_COLD_STARTS * cold, 1.0):
            return 0
        return max(0, min(replicas.pending - replicas.unschedulable, replicas.ready))

    def low_goodput(self) -> Iterator[tuple[ClassPolicy, Goodput, int]]:
        """Classes whose goodput is known and below the objective, and the percentage. Once it is known what a replica
        takes, requests that were shed are no reason: they are in the price that the forecast is chosen by."""
        for item in self.policy.classes:
            seen = self.goodput[item.name]
            if seen.offered < max(1, self.policy.goodput_min_offered):
                continue
            fine = min(seen.offered, seen.good + (0 if self.plant is None else seen.shed))
            percent = 100 * fine // seen.offered
            if percent < item.objective_percent:
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
