"""What one replica can take, learned from service: requests a second with all its slots in use. Pure.

A request takes longer the more others it shares a batch with: its time is alone + share x others, the batch's steps
growing with its sequences. Both are fitted to the blocks of service (Little's law gives the time: requests in flight
divided by requests a second), the newer ones weighing more. At S slots a replica then takes S / time(S) requests a
second. The fit is asked only once a replica has been busy enough, and it stays between what was served already and
what would be served if company cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LEAST_SHARE = 0.4  # of the slots that must have been in use, on the mean over a block, before capacity is known
LEAST_REQUESTS = 200
LEAST_BLOCKS = 2
FADE = 0.97  # weight of a block against the next one: half after eleven minutes or so
NEAR = 0.8  # of the busiest block: what was served then is served again
RECENT = 20  # blocks that show how full a replica gets
FITTED_S = 1000.0  # replica-seconds of saturation that weigh as much as the fit
FULL = 0.6  # of the most requests in flight in a replica, on the mean over a block
PROFILED_S = 300.0  # replica-seconds of saturation that weigh as much as an engine's step times
LATELY = 10  # blocks of service which a replica takes at least
FAR = 1.5  # times what was learned from service alone, that step times may differ from it
SATURATED = 0.9  # of a block with something waiting: replicas took all they could


class Block(msgspec.Struct, frozen=True):
    """Service over half a minute. Means per replica are sums divided by `replica_s`."""

    at: float  # unix seconds, end
    replica_s: float  # seconds of replicas that served
    request_s: float  # seconds of requests in flight
    admitted: float  # requests that began
    queued_s: float  # seconds in which something waited for a replica
    span_s: float
    full_replica_s: float = 0.0  # seconds of replicas while something waited all the time
    full_request_s: float = 0.0  # the same of requests in flight
    full_admitted: float = 0.0  # requests that began then


class Capacity(msgspec.Struct, frozen=True):
    """What one replica takes; `per_second` None: not known, `detail` says why."""

    per_second: float | None
    detail: str
    learned: bool = True  # service has part in it; False: by the engines' step times alone
    service: float | None = None  # requests/s by service alone, where step times have part in it


def capacity(blocks: Sequence[Block], slots: int) -> Capacity:
    """Of one replica with so many slots."""
    used = [b for b in blocks if b.admitted > 0 and b.request_s > 0]
    requests = sum(b.admitted for b in used)
    if requests < LEAST_REQUESTS:
        return Capacity(None, f"{requests:.0f} of {LEAST_REQUESTS} requests were seen to learn from")
    if len(used) < LEAST_BLOCKS:
        return Capacity(None, f"{len(used)} of {LEAST_BLOCKS} half-minutes of service were seen to learn from")
    busiest = max(b.request_s / b.replica_s for b in used)
    if busiest < LEAST_SHARE * slots:
        least = f"{100 * LEAST_SHARE:.0f} % of a replica's slots"
        return Capacity(None, f"in no half-minute {least} were in use: at most {busiest:.1f} of {slots}")
    alone, share = _fit(used)
    full = _full(used, slots)
    rate = full / max(alone + share * full, 1e-9)
    near = [b for b in used if b.request_s / b.replica_s >= NEAR * busiest]
    began = sum(b.admitted for b in near)
    served = began / sum(b.replica_s for b in near)
    free = full * began / sum(b.request_s for b in near)  # if company cost nothing
    rate = min(max(rate, min(served, free)), max(served, free))
    weight, seen = _saturated(used, busiest)
    rate = (FITTED_S * rate + weight * seen) / (FITTED_S + weight)
    return Capacity(rate, f"a replica takes {rate:.3g} requests/s with {full:.0f} slots in use")


def anchored(profile: Capacity, blocks: Sequence[Block], service: Capacity) -> Capacity:
    """What the engines' step times say, corrected by service: by the times in which something waited, by what was
    served of late, and by what was learned from service alone (`service`), from which it is never far."""
    rate, alone = profile.per_second, service.per_second
    if rate is None:
        return service if alone is not None or not profile.detail else Capacity(
            None, f"{service.detail}; {profile.detail}")  # fmt: skip
    used = [b for b in blocks if b.admitted > 0 and b.request_s > 0]
    if used:
        weight, seen = _saturated(used, max(b.request_s / b.replica_s for b in used))
        if weight > 0:  # seconds a request, so that a rate far too high weighs little
            rate = (PROFILED_S + weight) / (PROFILED_S / rate + weight / seen)
        lately = used[-LATELY:]
        rate = max(rate, sum(b.admitted for b in lately) / sum(b.replica_s for b in lately))
    if alone is not None:
        rate = min(max(rate, alone / FAR), alone * FAR)
    text = f"a replica takes {profile.detail}"
    if rate != profile.per_second:
        text += f", {rate:.3g} with what was served"
    why = service.detail if alone is None else f"by service alone {alone:.3g}"
    return Capacity(rate, f"{text}; {why}", alone is not None, alone)


def _saturated(blocks: Sequence[Block], busiest: float) -> tuple[float, float]:
    """(weight in replica-seconds, requests/s of a replica) of the times in which something waited all the time and
    slots were about as full as they get: then replicas took all that they could."""
    weight = rate = 0.0
    fade = 1.0
    for block in reversed(blocks):
        if block.full_admitted > 0 and block.full_request_s >= FULL * busiest * block.full_replica_s > 0:
            weight, rate = weight + fade * block.full_replica_s, rate + fade * block.full_admitted
        fade *= FADE
    return weight, rate / weight if weight > 0 else 0.0


def _fit(blocks: Sequence[Block]) -> tuple[float, float]:
    """(alone, share): seconds of a request alone, and more for each other one; neither below 0."""
    weight = total_n = total_t = total_nn = total_nt = 0.0
    fade = 1.0
    for block in reversed(blocks):
        n, time, w = block.request_s / block.replica_s, block.request_s / block.admitted, fade * block.admitted
        weight, total_n, total_t = weight + w, total_n + w * n, total_t + w * time
        total_nn, total_nt, fade = total_nn + w * n * n, total_nt + w * n * time, fade * FADE
    mean_n, mean_t = total_n / weight, total_t / weight
    spread = total_nn / weight - mean_n * mean_n
    if spread <= 1e-3 * mean_n * mean_n:  # always the same number: no slope can be told
        return mean_t, 0.0
    share = min(max(0.0, (total_nt / weight - mean_n * mean_t) / spread), mean_t / mean_n)
    return mean_t - share * mean_n, share


def _full(blocks: Sequence[Block], slots: int) -> float:
    """Requests in a replica that is full: its slots, or fewer where pages or prefill bind first."""
    full = [b.request_s / b.replica_s for b in blocks[-RECENT:] if b.queued_s >= SATURATED * b.span_s]
    return min(float(slots), sum(full) / len(full)) if len(full) >= LEAST_BLOCKS else float(slots)
