"""The rules, each with its answer: how many replicas it asks for, or why it has no opinion. Pure."""

from __future__ import annotations

import math

from headrace.api.quantities import show_count
from headrace.scaling.context import SHORT_COLD_S, Context
from headrace.scaling.load import BIN_S
from headrace.scaling.rehearsal import expected_rate, replicas
from headrace.scaling.signals import queue_ages
from headrace.scaling.types import Candidate, ClassPolicy, Sample
from headrace.scaling.window import RECENT_S

FLOOR, FORECAST, QUEUE_AGE, GOODPUT, FROM_ZERO = "floor", "forecast", "queueAge", "goodput", "fromZero"
CURRENT, DOWN, TO_ZERO, ROOM = "current", "down", "toZero", "room"

SLOPE_S = 10.0  # span over which the growth of the queue age is measured
AHEAD_S = 5.0  # how far ahead that growth is followed
SETTLE_S = 5.0  # a queue must have aged so long, beside free slots, before one more replica is tried
SUSTAINED_S = 10.0  # over which requests in flight and waiting are what goes on, not a burst
PRESENT_S = 60.0  # over which the load is what there is at present
NOTICED = 0.1  # of the time that a request may wait, by which a queue must grow during a cold start to be overload
COLD_ROUNDS = 4  # times that a starting replica may turn over its slots before the queue is worth another
FULL_PERCENT = 80  # of the slots in use, from where the batch itself may be what makes requests late


def candidates(context: Context) -> tuple[Candidate, ...]:
    """Every rule's answer, always the same rules in the same order."""
    rules = (floor, expected, queue_age, low_goodput, from_zero, current, room, down, to_zero)
    return tuple(rule(context) for rule in rules)


def floor(context: Context) -> Candidate:
    """Never fewer than the spec says."""
    least = context.policy.min_replicas
    by = f", by {context.policy.ordered.detail}" if context.policy.ordered is not None else ""
    return Candidate(FLOOR, least, f"minReplicas is {least}{by}")


def expected(context: Context) -> Candidate:
    """The slow loop: the load that is expected, divided by what a replica takes."""
    each, plant, arrivals = context.capacity, context.plant, context.unsettled
    if context.sample is None:
        return Candidate(FORECAST, None, "no fresh sample")
    if context.replicas.current == 0:
        return Candidate(FORECAST, None, "nothing runs: fromZero decides")
    if plant is None:
        return Candidate(FORECAST, None, f"not known what a replica takes: {each.detail}" if each.per_second is None
                         else "no cold start was measured yet")  # fmt: skip
    if not arrivals:
        return Candidate(FORECAST, None, "no load was seen yet, or none since the last step down")
    setting = context.setting
    rate = expected_rate(arrivals, setting, plant.cold_start_s)
    wanted = replicas(rate, setting, plant.capacity)
    given = "" if context.memory.fill == 1.0 else f", of which it is given {context.memory.fill:.0%}"
    text = f"{rate:.3g} requests/s ({setting}); {each.detail}{given}"
    if wanted > context.replicas.current and not any(context.arrivals[-round(PRESENT_S / BIN_S) :]):
        wanted = context.replicas.current
        text += f"; nobody asked in {PRESENT_S:.0f} s, which is no time to grow"
    fresh = context.arrivals[-len(arrivals) :]
    if wanted > context.replicas.current and context.recalls:  # what was recalled may keep replicas, not add any
        grown = replicas(expected_rate(fresh, setting, plant.cold_start_s), setting, plant.capacity) if fresh else 0
        wanted = max(context.replicas.current, grown)
        text += "; load of before the start counts for keeping replicas only"
    return Candidate(FORECAST, wanted + context.stuck, text + _stuck(context))


def current(context: Context) -> Candidate:
    """Nothing changes."""
    return Candidate(CURRENT, context.replicas.current, _state(context))


def from_zero(context: Context) -> Candidate:
    """A request waits and nothing runs: one replica at once; the queue decides about more."""
    sample = context.sample
    if context.replicas.current != 0:
        return Candidate(FROM_ZERO, None, f"{show_count(context.replicas.current, 'replica')} wanted already")
    if sample is None:
        return Candidate(FROM_ZERO, None, "no fresh sample")
    if sample.queued == 0:
        return Candidate(FROM_ZERO, None, "nothing waits")
    return Candidate(FROM_ZERO, max(1, context.policy.min_replicas), f"{_waiting(sample.queued)} at zero replicas")


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
    foreseen = context.choice.late
    planned = foreseen is not None and context.overspent is None and not _overloaded(context)
    if context.plant is not None and planned:
        return Candidate(QUEUE_AGE, None, f"{text}; no more of late than may be, forecast foresaw {foreseen:.1%}")
    if context.replicas.ready <= 0:
        wanted = math.ceil(queued / (slots * COLD_ROUNDS))
        text += f" while none of {now} is ready, {COLD_ROUNDS} rounds of {slots} slots each"
    else:
        wanted, why = _for_queue(context, sample, queued)
        wanted, text = wanted + context.stuck, text + why + _stuck(context)
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
    fine = "good" if context.plant is None else "good or shed"
    text = (
        f"{item.name}: {percent} % of {seen.offered} offered were {fine}, the objective is {item.objective_percent} %"
    )
    slots = max(0, replicas.ready) * context.policy.max_sequences
    use = _slot_use(context, slots)
    if slots == 0 or use < FULL_PERCENT:
        return Candidate(
            GOODPUT,
            None,
            f"{text}; but {use} % of {slots} slots are used: the engines are ill, more of them would not help",
        )
    if replicas.pending > 0 or replicas.ready < replicas.current:
        return Candidate(GOODPUT, None, f"{text}; {show_count(replicas.pending, 'replica')} on the way")
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
    if context.plant is not None:
        forecast = _down_by_forecast(context, fewer, context.plant.capacity)
        if context.capacity.learned or forecast.replicas is None:
            return forecast
    peak = context.window.peak_demand(context.now - settle)
    serving = min(fewer, replicas.ready)
    slots = serving * policy.max_sequences
    share = f"{policy.down_load_percent} % of {slots} slots"
    text = f"at most {show_count(peak, 'request')} at one time in {settle:.0f} s; {share} with {fewer}"
    if 100 * peak > policy.down_load_percent * slots:
        return Candidate(DOWN, None, f"{text} would not hold them")
    return Candidate(DOWN, fewer, f"{text} suffice")


def _down_by_forecast(context: Context, fewer: int, capacity: float) -> Candidate:
    """What is expected takes no more, and what there is at present fits into what would be left, also by service
    alone: step times keep no promise that service has not seen."""
    wanted, service = expected(context), context.capacity.service
    capacity = capacity if service is None else min(capacity, service * context.memory.fill)
    recent = context.arrivals[-round(PRESENT_S / BIN_S) :]
    load = sum(recent) / max(1, len(recent))
    would = f"{show_count(fewer, 'replica')} would take {fewer * capacity:.3g}"
    text = f"forecast: {wanted.detail}; {load:.3g} requests/s at present, {would}"
    fits = wanted.replicas is not None and wanted.replicas <= fewer and load <= fewer * capacity
    return Candidate(DOWN, fewer if fits else None, text)


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


def _for_queue(context: Context, sample: Sample, queued: int) -> tuple[int, str]:
    """How many replicas serve what waits: by what a replica takes where that is known, else by slots.

    What waits now is late before a new replica serves it, so it counts over a cold start, beside the load that goes on:
    that of a minute if a replica starts within one, else of the last half of it, since what is asked for comes late.
    """
    slots, plant = context.policy.max_sequences, context.plant
    if plant is None or not context.arrivals or not context.capacity.learned:
        load: float = queued + sample.in_flight
        if (context.replicas.cold_start_s or 0.0) > SHORT_COLD_S:
            load = min(load, context.window.mean_demand(context.now - SUSTAINED_S))
        wanted = math.ceil(load / slots)
        return wanted, f" need {wanted} × {slots} slots"
    span = PRESENT_S if plant.cold_start_s <= PRESENT_S else RECENT_S
    arrivals = context.arrivals[-round(span / BIN_S) :]
    rate = sum(arrivals) / len(arrivals) + queued / max(plant.cold_start_s, PRESENT_S)
    wanted = math.ceil(rate / plant.capacity)
    return wanted, f", {rate:.3g} requests/s to serve need {wanted} replicas of {plant.capacity:.3g} requests/s"


def _waiting(count: int) -> str:
    return f"{show_count(count, 'request')} {'waits' if count == 1 else 'wait'}"


def _stuck(context: Context) -> str:
    return f"; beside {context.stuck} that did not start in two cold starts" if context.stuck else ""


def _overloaded(context: Context) -> bool:
    """More was asked for over a minute than all replicas take, those on their way included, and so much more that the
    queue would be noticeably older before another one starts: no such queue ends by itself."""
    recent, plant = context.arrivals[-round(PRESENT_S / BIN_S) :], context.plant
    if plant is None or not recent:
        return False
    holds = context.replicas.current * plant.capacity
    return sum(recent) / len(recent) > holds * (1 + NOTICED * plant.slack_s / max(plant.cold_start_s, 1.0))


def _busy(context: Context, sample: Sample) -> str | None:
    """What forbids a step down at this moment."""
    replicas = context.replicas
    aged = any(context.ages.get(c.name, 0.0) > c.max_queue_age_s / 2 for c in context.policy.classes)
    if (sample.queued or sample.waiting) and (aged or context.plant is None):
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
    return round(100 * context.window.mean_in_flight() / slots) if slots else 0


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
