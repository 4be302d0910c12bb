"""The rules, each with its answer: how many replicas it asks for, or why it has no opinion. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from headrace.scaling.signals import Goodput, goodput, queue_ages
from headrace.scaling.types import Candidate, ClassPolicy, Memory, Policy, Replicas, Sample
from headrace.scaling.window import Window

FLOOR, QUEUE_AGE, GOODPUT, FROM_ZERO = "floor", "queueAge", "goodput", "fromZero"
CURRENT, DOWN, TO_ZERO, ROOM = "current", "down", "toZero", "room"

SLOPE_S = 10.0  # span over which the growth of the queue age is measured
AHEAD_S = 5.0  # how far ahead that growth is followed
SETTLE_S = 5.0  # a queue must have aged so long, beside free slots, before one more replica is tried
COLD_ROUNDS = 4  # times that a starting replica may turn over its slots before the queue is worth another
FULL_PERCENT = 80  # of the slots in use, from where the batch itself may be what makes requests late
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

    @property
    def settle_s(self) -> float:
        """Seconds for which fewer replicas must have sufficed: not less than a cold start takes."""
        return max(self.policy.down_after_s, self.replicas.cold_start_s or 0.0)

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


def candidates(context: Context) -> tuple[Candidate, ...]:
    """Every rule's answer, always the same rules in the same order."""
    rules = (floor, queue_age, low_goodput, from_zero, current, room, down, to_zero)
    return tuple(rule(context) for rule in rules)


def floor(context: Context) -> Candidate:
    """Never fewer than the spec says."""
    least = context.policy.min_replicas
    return Candidate(FLOOR, least, f"minReplicas is {least}")


def current(context: Context) -> Candidate:
    """Nothing changes."""
    return Candidate(CURRENT, context.replicas.current, _state(context))


def from_zero(context: Context) -> Candidate:
    """A request waits and nothing runs: one replica at once; the queue decides about more."""
    sample = context.sample
    if context.replicas.current != 0:
        return Candidate(FROM_ZERO, None, f"{context.replicas.current} replicas are wanted already")
    if sample is None:
        return Candidate(FROM_ZERO, None, "no fresh sample")
    if sample.queued == 0:
        return Candidate(FROM_ZERO, None, "nothing waits")
    return Candidate(FROM_ZERO, max(1, context.policy.min_replicas), f"{sample.queued} requests wait at zero replicas")


def queue_age(context: Context) -> Candidate:
    """The fast loop: requests wait longer than their class allows, or are about to."""
    sample, now = context.sample, context.replicas.current
    if sample is None:
        return Candidate(QUEUE_AGE, None, "no fresh sample")
    if now == 0:
        return Candidate(QUEUE_AGE, None, "nothing runs: fromZero decides")
    breached = [c for c in context.policy.classes if _breaches(context, c)]
    if not breached:
        return Candidate(QUEUE_AGE, None, f"in time: {_ages(context)}")
    lowest = min(c.priority for c in breached)
    counted = {c.name for c in context.policy.classes if c.priority >= lowest}
    queued = sum(c.queued for c in sample.classes if c.name in counted)
    slots = context.policy.max_sequences
    text = f"waiting too long: {_ages(context, breached)}; {queued} queued and {sample.in_flight} in flight"
    if context.replicas.ready <= 0:
        wanted = math.ceil(queued / (slots * COLD_ROUNDS))
        text += f" while none of {now} is ready, {COLD_ROUNDS} rounds of {slots} slots each"
    else:
        wanted = math.ceil((queued + sample.in_flight) / slots)
        text += f" need {wanted} × {slots} slots"
        if wanted <= now and _stuck_beside_slots(context, breached):
            wanted = now + 1
            text += f"; slots alone do not explain it for {SETTLE_S:.0f} s, so one more"
    return Candidate(QUEUE_AGE, max(now, wanted), text)


def low_goodput(context: Context) -> Candidate:
    """Requests are late although they do not wait: full batches need room; anything else more replicas cannot cure."""
    sample, replicas = context.sample, context.replicas
    if sample is None:
        return Candidate(GOODPUT, None, "no fresh sample")
    low = next(context.low_goodput(), None)
    if low is None:
        return Candidate(GOODPUT, None, _goodputs(context))
    item, seen, percent = low
    text = f"{item.name}: {percent} % of {seen.offered} offered were good, the objective is {item.objective_percent} %"
    slots = max(0, replicas.ready) * context.policy.max_sequences
    use = _slot_use(context, slots)
    if slots == 0 or use < FULL_PERCENT:
        return Candidate(GOODPUT, None, f"{text}; but {use} % of {slots} slots are used, so more would not help")
    if replicas.pending > 0 or replicas.ready < replicas.current:
        return Candidate(GOODPUT, None, f"{text}; {replicas.pending} replicas are on their way")
    settled = context.policy.goodput_window_s
    if not context.since_change >= settled:
        return Candidate(GOODPUT, None, f"{text}; the last change is {context.since_change:.0f} of {settled:.0f} s old")
    return Candidate(GOODPUT, replicas.current + 1, f"{text}, {use} % of {slots} slots are used")


def room(context: Context) -> Candidate:
    """Growth for which the cluster finds no node is returned after a lease."""
    replicas, since = context.replicas, context.memory.unschedulable_since
    if replicas.unschedulable <= 0 or since is None:
        return Candidate(ROOM, None, "every replica has a node, or none was asked for")
    waited, lease = context.now - since, context.policy.unschedulable_lease_s
    text = f"{replicas.unschedulable} of {replicas.current} replicas have found no node for {max(0.0, waited):.0f} s"
    if not waited >= lease:
        return Candidate(ROOM, None, f"{text}, of {lease:.0f} s that are waited")
    if context.missing is not None:
        return Candidate(ROOM, None, f"{text}; {context.missing}")
    waits = context.sample is not None and context.sample.queued > 0
    fitting = max(context.policy.min_replicas, int(waits), replicas.current - replicas.unschedulable)
    if fitting >= replicas.current:
        return Candidate(ROOM, None, f"{text}; fewer than {fitting} must not be asked for")
    return Candidate(ROOM, fitting, f"{text}: they are given back")


def down(context: Context) -> Candidate:
    """One replica fewer, if its slots would have sufficed for long enough with room to spare."""
    policy, replicas = context.policy, context.replicas
    fewer = replicas.current - 1
    if fewer < max(1, policy.min_replicas):
        return Candidate(DOWN, None, f"{replicas.current} is the least without scaling to zero")
    if context.missing is not None or context.sample is None:
        return Candidate(DOWN, None, context.missing or "no fresh sample")
    busy = _busy(context, context.sample)
    if busy is not None:
        return Candidate(DOWN, None, busy)
    settle = context.settle_s
    known = context.window.known_for(context.now)
    if not known >= settle:
        return Candidate(DOWN, None, f"demand is known for {known:.0f} of {settle:.0f} s")
    peak = context.window.peak_demand(context.now - settle)
    serving = min(fewer, replicas.ready)
    slots = serving * policy.max_sequences
    share = f"{policy.down_load_percent} % of {slots} slots"
    text = f"at most {peak} requests at one time in {settle:.0f} s; {share} with {fewer}"
    if 100 * peak > policy.down_load_percent * slots:
        return Candidate(DOWN, None, f"{text} would not hold them")
    return Candidate(DOWN, fewer, f"{text} suffice")


def to_zero(context: Context) -> Candidate:
    """None at all, on fresh proof from every gateway that nothing was asked for."""
    policy, sample = context.policy, context.sample
    if policy.min_replicas > 0:
        return Candidate(TO_ZERO, None, f"minReplicas is {policy.min_replicas}")
    if context.replicas.current == 0:
        return Candidate(TO_ZERO, None, "zero already")
    if context.missing is not None or sample is None:
        return Candidate(TO_ZERO, None, context.missing or "no fresh sample")
    if sample.queued or sample.in_flight:
        return Candidate(TO_ZERO, None, f"{sample.queued} queued, {sample.in_flight} in flight")
    after = policy.to_zero_after_s
    busiest = min(sample.gateways, key=lambda g: g.idle_s)
    if not busiest.idle_s >= after:
        return Candidate(TO_ZERO, None, f"gateway {busiest.name} knows of {busiest.idle_s:.0f} idle s of {after:.0f}")
    known = context.window.known_for(context.now)
    if not known >= after:
        return Candidate(TO_ZERO, None, f"idleness was watched for {known:.0f} s of {after:.0f}")
    if context.window.peak_demand(context.now - after) > 0:
        return Candidate(TO_ZERO, None, f"there was demand within {after:.0f} s")
    return Candidate(TO_ZERO, 0, f"no request for {busiest.idle_s:.0f} s, says every gateway of {len(sample.gateways)}")


def _busy(context: Context, sample: Sample) -> str | None:
    """What forbids a step down at this moment."""
    replicas = context.replicas
    if sample.queued or sample.waiting:
        return f"{sample.queued} queued, {sample.waiting} waiting in engines"
    stuck = context.since_change >= context.policy.stuck_after_s and replicas.ready > 0
    if replicas.unschedulable > 0 or (not stuck and (replicas.pending > 0 or replicas.ready < replicas.current)):
        return f"{replicas.ready} of {replicas.current} replicas are ready, {replicas.unschedulable} without a node"
    low = next(context.low_goodput(), None)
    use = _slot_use(context, max(0, replicas.ready) * context.policy.max_sequences)
    if low is not None and use >= FULL_PERCENT / 2:
        item, _, percent = low
        return f"{item.name}: goodput is {percent} % of {item.objective_percent} %, with {use} % of the slots in use"
    return None


def _breaches(context: Context, item: ClassPolicy) -> bool:
    """The class waits too long, or will within AHEAD_S at the pace of the last SLOPE_S."""
    age = context.ages.get(item.name)
    if age is None:
        return False
    if age > item.max_queue_age_s:
        return True
    before = next(s for s in context.window.recent if s.at >= context.now - SLOPE_S)
    span = context.now - before.at
    growth = (age - queue_ages(context.policy, before).get(item.name, 0.0)) / span if span >= 1 else 0.0
    return age > item.max_queue_age_s / 2 and age + growth * AHEAD_S > item.max_queue_age_s


def _stuck_beside_slots(context: Context, breached: list[ClassPolicy]) -> bool:
    """Every sample of the last SETTLE_S shows all replicas serving and a class that is too old all the same."""
    samples = [s for s in context.window.recent if s.at >= context.now - SETTLE_S]
    if context.replicas.pending > 0 or not samples or context.now - samples[0].at < SETTLE_S - 1.5:
        return False
    return all(
        len(s.engines) >= context.replicas.current
        and any(queue_ages(context.policy, s).get(c.name, 0.0) > c.max_queue_age_s for c in breached)
        for s in samples
    )


def _slot_use(context: Context, slots: int) -> int:
    """Mean share of the slots in use over the recent samples, in percent."""
    recent = context.window.recent
    if not slots or not recent:
        return 0
    return round(100 * sum(s.in_flight for s in recent) / len(recent) / slots)


def _ages(context: Context, only: list[ClassPolicy] | None = None) -> str:
    ages = [
        f"{c.name} {context.ages[c.name]:.2f} s of {c.max_queue_age_s:g} s{_growing(context, c, only)}"
        for c in (context.policy.classes if only is None else only)
        if c.name in context.ages
    ]
    return ", ".join(ages) or "nothing waits"


def _growing(context: Context, item: ClassPolicy, breached: list[ClassPolicy] | None) -> str:
    return " and growing" if breached and context.ages[item.name] <= item.max_queue_age_s else ""


def _goodputs(context: Context) -> str:
    texts = []
    for item in context.policy.classes:
        seen = context.goodput[item.name]
        percent = "unknown, nothing offered" if seen.percent is None else f"{seen.percent} % of {seen.offered}"
        texts.append(f"{item.name} {percent} (objective {item.objective_percent} %)")
    return ", ".join(texts)


def _state(context: Context) -> str:
    sample, replicas = context.sample, context.replicas
    text = f"{replicas.ready} of {replicas.current} ready"
    return text if sample is None else f"{text}, {sample.queued} queued, {sample.in_flight} in flight"
