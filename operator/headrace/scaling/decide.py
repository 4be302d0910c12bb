"""The decision: the winner among the candidates, then the guards that bind it. Pure.

The highest candidate wins; only if none asks for more may one that asks for less. Missing, stale or implausible data
never lead to fewer replicas; the spec's bounds hold always.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.scaling.candidates import (
    CURRENT,
    DOWN,
    FLOOR,
    FORECAST,
    FROM_ZERO,
    GOODPUT,
    QUEUE_AGE,
    ROOM,
    TO_ZERO,
    candidates,
)
from headrace.scaling.context import Context, implausible
from headrace.scaling.types import (
    Candidate,
    Decision,
    Guard,
    Memory,
    Ordered,
    Policy,
    Reason,
    Refused,
    Replicas,
    iso,
)
from headrace.scaling.window import Window

_REASONS = {
    FLOOR: Reason.MIN_REPLICAS,
    FORECAST: Reason.FORECAST,
    QUEUE_AGE: Reason.QUEUE_AGE,
    GOODPUT: Reason.GOODPUT,
    FROM_ZERO: Reason.FROM_ZERO,
    CURRENT: Reason.STEADY,
    ROOM: Reason.UNSCHEDULABLE,
    DOWN: Reason.UNDERUSED,
    TO_ZERO: Reason.TO_ZERO,
}
_ORDERS = {"schedule": Reason.SCHEDULE, "override": Reason.OVERRIDE}
_UPWARD = (FLOOR, FROM_ZERO, FORECAST, QUEUE_AGE, GOODPUT)
_FORGET_REFUSAL_S = 3600.0
_FILL_LESS, _FILL_AGAIN, _LEAST_FILL = 0.85, 1.005, 0.5  # at a step up for goodput; each minute; never less
_FILL_MORE, _MOST_FILL = 1.02, 1.15  # each minute at ease; never more
_OWN_CHANGE_S = 30.0  # a change that Kubernetes shows so soon after ours is ours


@dataclass
class _Answer:
    """The value on its way through the guards."""

    replicas: int
    reason: Reason
    guards: list[Guard]

    def bind(self, name: str, replicas: int, reason: Reason, detail: str) -> None:
        """Let a guard change the value; one that changes nothing is not noted."""
        if replicas != self.replicas:
            self.guards.append(Guard(name, f"{self.replicas} → {replicas}", detail))
            self.replicas, self.reason = replicas, reason


def decide(policy: Policy, window: Window, replicas: Replicas, now: float, memory: Memory | None = None) -> Decision:
    """How many replicas there should be at `now` (unix seconds). Hand the decision's `memory` to the next call."""
    decision = _decide(policy, window, replicas, now, memory or Memory())
    if policy.ordered is None:
        return decision
    chosen = decision.memory  # chosen once: the way to forecast does not depend on the bounds
    before = msgspec.structs.replace(
        memory or Memory(), choice=chosen.choice, price=chosen.price, chosen_at=chosen.chosen_at
    )
    return _against(decision, _decide(policy.plain(), window, replicas, now, before), policy.ordered)


def _against(decision: Decision, plain: Decision, ordered: Ordered) -> Decision:
    """The decision, with what it would have been under the spec's own bounds if that is something else."""
    if decision.replicas == plain.replicas:
        return decision
    detail = f"{ordered.detail}; without it {plain.replicas} ({plain.reason.value})"
    return msgspec.structs.replace(
        decision,
        reason=_ORDERS.get(ordered.by, decision.reason),
        guards=(*decision.guards, Guard(ordered.by, f"{plain.replicas} → {decision.replicas}", detail)),
    )


def _decide(policy: Policy, window: Window, replicas: Replicas, now: float, memory: Memory) -> Decision:
    memory = _watch_room(memory, replicas, now)
    context = Context(policy, window, replicas, now, memory)
    found = candidates(context)
    winner = _winner(found, replicas.current)
    wanted = replicas.current if winner.replicas is None else winner.replicas
    answer = _Answer(wanted, _REASONS[winner.name], [])
    if winner.name == CURRENT:
        _explain_hold(context, answer)
    _limit_step(context, answer, winner)
    _limit_pace(context, answer, winner)
    _limit_room(context, answer)
    if replicas.allowed is not None:
        allowed = min(answer.replicas, replicas.allowed.most)
        answer.bind("budget", allowed, Reason.BUDGET, replicas.allowed.detail)
    answer.bind("maxReplicas", min(answer.replicas, policy.max_replicas), Reason.MAX_REPLICAS, policy.bounds)
    answer.bind("minReplicas", max(answer.replicas, policy.min_replicas), Reason.MIN_REPLICAS, policy.bounds)
    if (answer.replicas - replicas.current) * (wanted - replicas.current) > 0:
        answer.reason = _REASONS[winner.name]  # bound, but on its way
    return Decision(
        at=now,
        current=replicas.current,
        replicas=answer.replicas,
        reason=answer.reason,
        winner=winner.name,
        candidates=found,
        guards=tuple(answer.guards),
        inputs=_inputs(context),
        memory=_remember(context, answer.replicas, winner),
    )


def _winner(found: tuple[Candidate, ...], current: int) -> Candidate:
    by_name = {c.name: c for c in found}
    if by_name[ROOM].replicas is not None:
        return by_name[ROOM]
    upward = [by_name[name] for name in _UPWARD]
    highest = max(upward, key=lambda c: -1 if c.replicas is None else c.replicas)
    if highest.replicas is not None and highest.replicas > current:
        return highest
    for name in (TO_ZERO, DOWN):
        if by_name[name].replicas is not None:
            return by_name[name]
    return by_name[CURRENT]


def _explain_hold(context: Context, answer: _Answer) -> None:
    """Say so where it is for lack of data that nothing changes."""
    window, policy = context.window, context.policy
    latest = window.latest
    if latest is None or (not latest.gateways and window.complete_at is None):
        reason, detail = Reason.NO_DATA, "no gateway has reported on this model yet"
        if latest is not None and latest.faults:
            detail += f": {latest.faults[0]}"
    elif context.sample is None:
        since = window.complete_at if window.complete_at is not None else latest.at
        why = f": {latest.faults[0]}" if latest.faults else ""
        reason, detail = Reason.STALE, f"no fresh sample since {iso(since)}{why}"
    elif context.missing is not None:
        reason, detail = Reason.INCOMPLETE, context.missing
    elif not window.known_for(context.now) >= policy.down_after_s:
        known = window.known_for(context.now)
        reason, detail = Reason.WARMING_UP, f"{known:.0f} s of a window of {policy.down_after_s:.0f} s were seen"
    else:
        return
    answer.reason = reason
    answer.guards.append(Guard("data", f"holds {answer.replicas}", detail))


def _limit_step(context: Context, answer: _Answer, winner: Candidate) -> None:
    """At most double at one time; the spec's floor apart."""
    most = context.replicas.current + max(1, context.replicas.current)
    if winner.name != FLOOR and answer.replicas > most:
        answer.bind("step", most, answer.reason, "at most double in one step")


def _limit_pace(context: Context, answer: _Answer, winner: Candidate) -> None:
    """Time between two steps: short upward, and downward as long as the last step up needs to be judged."""
    current, policy = context.replicas.current, context.policy
    if winner.name in (QUEUE_AGE, GOODPUT) and answer.replicas > current:
        passed = _passed(context.now, context.memory.up_at)
        if passed is not None and passed < policy.up_interval_s:
            detail = f"the last step up is {passed:.1f} s old, {policy.up_interval_s:g} s are waited"
            answer.bind("pace", current, Reason.COOLDOWN, detail)
    if winner.name == DOWN:
        passed, needed = _since_last_change(context)
        if passed is not None and not passed >= needed:
            detail = f"the last change is {passed:.0f} s old, {needed:.0f} s are waited"
            answer.bind("pace", current, Reason.COOLDOWN, detail)


def _since_last_change(context: Context) -> tuple[float | None, float]:
    """Seconds since the change that a step down waits for, and how long it waits."""
    memory, changed_at = context.memory, context.replicas.changed_at
    ours = memory.down_at
    after_up = ours is not None and (memory.up_at is None or memory.up_at < ours)
    if ours is not None and after_up and (changed_at is None or changed_at <= ours + _OWN_CHANGE_S):
        return _passed(context.now, ours), context.policy.down_interval_s
    if changed_at is not None:
        return max(0.0, context.now - changed_at), context.judged_s
    return _passed(context.now, memory.up_at), context.judged_s


def _passed(now: float, at: float | None) -> float | None:
    """Seconds since; None if never, or if the clock has gone back behind it."""
    return None if at is None or at > now else now - at


def _limit_room(context: Context, answer: _Answer) -> None:
    """No growth beyond what the cluster had room for, until it is time to try again."""
    current, refused = context.replicas.current, context.memory.refused
    if answer.replicas > current and context.replicas.unschedulable > 0:
        detail = f"{context.replicas.unschedulable} replicas have no node yet"
        answer.bind("room", current, Reason.UNSCHEDULABLE, detail)
    if refused is not None and context.now < refused.until and answer.replicas > max(current, refused.ceiling):
        detail = f"the cluster had no node for more than {refused.ceiling}; tried again at {iso(refused.until)}"
        answer.bind("room", max(current, refused.ceiling), Reason.UNSCHEDULABLE, detail)


def _watch_room(memory: Memory, replicas: Replicas, now: float) -> Memory:
    """Note since when replicas have no node, and forget a refusal that growth has disproved or that is long past."""
    since = memory.unschedulable_since
    if replicas.unschedulable <= 0:
        since = None
    elif since is None or since > now:
        since = now
    refused = memory.refused
    if refused is not None and (replicas.ready > refused.ceiling or now > refused.until + _FORGET_REFUSAL_S):
        refused = None
    return msgspec.structs.replace(memory, unschedulable_since=since, refused=refused)


def _remember(context: Context, replicas: int, winner: Candidate) -> Memory:
    memory, now, current = context.memory, context.now, context.replicas.current
    if context.chooses:
        memory = msgspec.structs.replace(
            memory, choice=context.choice, price=context.price, chosen_at=now, fill=_fill(context)
        )
    if winner.name == ROOM and replicas < current:
        tries = 1 if memory.refused is None else memory.refused.tries + 1
        wait = min(context.policy.retry_growth_max_s, context.policy.retry_growth_s * 2.0 ** min(tries - 1, 16))
        refused = Refused(ceiling=replicas, until=now + wait, tries=tries)
        return msgspec.structs.replace(memory, refused=refused, unschedulable_since=None)
    if replicas > current:
        late = winner.name == GOODPUT  # full batches miss the targets: a replica is given less from now on
        if late:
            memory = msgspec.structs.replace(memory, fill=max(_LEAST_FILL, memory.fill * _FILL_LESS), chosen_at=None)
        return msgspec.structs.replace(memory, up_at=now)
    if replicas < current:
        settled = now if _settles(context, winner) else memory.settled_at
        return msgspec.structs.replace(memory, down_at=now, settled_at=settled)
    return memory


def _fill(context: Context) -> float:
    """Of what a replica takes, what it is given from now on. Service teaches too little where replicas are full when
    requests are heavy. So while all is well it is tried whether a replica takes more."""
    fill = context.memory.fill
    if fill < 1.0:
        return min(1.0, fill * _FILL_AGAIN)
    return min(_MOST_FILL, fill * _FILL_MORE) if context.at_ease else 1.0


def _settles(context: Context, winner: Candidate) -> bool:
    """A step down that no forecast had part in: by idleness, or by slots while it is not known what a replica takes."""
    return winner.name == TO_ZERO or (winner.name == DOWN and context.plant is None)


def _inputs(context: Context) -> dict[str, int | float | str | None]:
    """The figures that the rules looked at; None = unknown."""
    sample, replicas = context.sample, context.replicas
    figures: dict[str, int | float | str | None] = {
        "ready": replicas.ready,
        "pending": replicas.pending,
        "unschedulable": replicas.unschedulable,
        "queued": None if sample is None else sample.queued,
        "inFlight": None if sample is None else sample.in_flight,
        "slotsPerReplica": context.policy.max_sequences,
        "missing": context.missing,
        "capacityPerReplica": None if context.plant is None else context.plant.capacity,
        "latePrice": context.price,
    }
    if context.plant is not None and context.profile.per_second is not None:
        figures["capacityFrom"] = "step times and service" if context.capacity.learned else "step times"
    if implausible(replicas, context.now) is None:
        figures["coldStartSeconds"] = replicas.cold_start_s
    for item in context.policy.classes:
        age = context.ages.get(item.name)
        figures[f"{item.name}.queueAgeMs"] = None if age is None else round(age * 1000)
        figures[f"{item.name}.goodputPercent"] = context.goodput[item.name].percent
        figures[f"{item.name}.offered"] = context.goodput[item.name].offered
    return figures
