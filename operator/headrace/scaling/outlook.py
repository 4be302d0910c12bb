"""What would change the number of replicas, in words: the rules of `candidates` with a policy's numbers put in."""

from __future__ import annotations

from headrace.api.quantities import show_count, show_seconds
from headrace.scaling.candidates import AHEAD_S, FULL_PERCENT
from headrace.scaling.types import Policy


def outlook(policy: Policy, current: int, cold_start_s: float | None) -> dict[str, str]:
    """A sentence each for `up`, `down` and `zero`, from `current` replicas."""
    return {"up": _up(policy, current), "down": _down(policy, current, cold_start_s), "zero": _zero(policy, current)}


def _up(policy: Policy, current: int) -> str:
    if current >= policy.max_replicas:
        return f"not beyond {_named(policy, 'maxReplicas')}, which is {policy.max_replicas}"
    if current < policy.min_replicas:
        return f"at once, {_named(policy, 'minReplicas')} is {policy.min_replicas}"
    if current == 0:
        return "at once when a request waits"
    waits = " or ".join(
        f"a request of class {c.name} waits longer than {show_seconds(c.max_queue_age_s)}" for c in policy.classes
    )
    slots = current * policy.max_sequences
    full = f"{FULL_PERCENT} % of {slots} slots in use"
    return (
        f"when {waits} (or will in {AHEAD_S:.0f} s at the pace at which that grows), as long as no "
        "rehearsed forecast accounts for it; or when a class's goodput is "
        f"below its objective over {show_seconds(policy.goodput_window_s)} with {full}; or, once it is known what a "
        "replica takes, when the expected load takes more"
    )


def _down(policy: Policy, current: int, cold_start_s: float | None) -> str:
    fewer = current - 1
    if current > policy.max_replicas:
        return f"at once to {policy.max_replicas}, {_named(policy, 'maxReplicas')}"
    if fewer < max(1, policy.min_replicas):
        least = f"{_named(policy, 'minReplicas')} is {policy.min_replicas}" if policy.min_replicas else "see to zero"
        return f"not below {current}: {least}" if current else "nothing runs"
    slots = fewer * policy.max_sequences
    held = max(policy.down_after_s, cold_start_s or 0.0)
    why = "downAfter" if held == policy.down_after_s else "a cold start"
    most, share = policy.down_load_percent * slots // 100, f"{policy.down_load_percent} % of {slots} slots"
    return (
        f"when at most {show_count(most, 'request')} at one time ({share} with {fewer}) were there for "
        f"{show_seconds(held)} ({why}), "
        "nothing waits, every replica is ready and every gateway and engine has told so without a gap; once it is "
        "known what a replica takes, when the load expected for as long as was learned takes fewer"
    )


def _zero(policy: Policy, current: int) -> str:
    if policy.min_replicas:
        return f"never, {_named(policy, 'minReplicas')} is {policy.min_replicas}"
    if policy.max_replicas == 0 and policy.ordered is not None:
        if current:
            return f"at once, {_named(policy, 'maxReplicas')} is 0"
        return f"it is held at zero by {policy.ordered.detail}; no request brings a replica back meanwhile"
    if current == 0:
        return "it is at zero; the first request brings a replica back"
    return f"when every gateway has had no request for {show_seconds(policy.to_zero_after_s)}"


def _named(policy: Policy, field: str) -> str:
    return f"spec.scaling.{field}" if policy.ordered is None else f"{field} of {policy.ordered.detail}"
