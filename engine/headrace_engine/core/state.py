"""What the core reports of itself: pages by holder, queues, the speed of prefill."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from headrace_engine.core.budget import StepTimes, Streams, work_of
from headrace_engine.core.plan import KvSpec, StepPlan
from headrace_engine.core.scheduler import Scheduler
from headrace_engine.core.sequence import NO_TARGET_S, Sequence
from headrace_wire.protocol import PAGE_TOKENS, CacheState, EngineState, Held, ModelInfo

HALF_LIFE_TOKENS = 4096  # prefilled tokens after which an observation weighs half


class PrefillRate:
    """Tokens/s that prompts got in steps that held any: a mean that forgets with the tokens seen."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step computed `tokens` prompt tokens."""
        keep = 0.5 ** (tokens / HALF_LIFE_TOKENS)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    @property
    def value(self) -> float:
        """Tokens/s; 0 = not yet measured."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0


@dataclass(frozen=True)
class Identity:
    """What stays the same in every report."""

    model: ModelInfo
    kv: KvSpec
    instance: str


class Reporter:
    """Makes EngineStates; fields that only the API process knows keep their defaults."""

    def __init__(self, identity: Identity, times: StepTimes | None = None):
        """`times`: fitted from the steps that are observed."""
        self._identity = identity
        self._times = times
        self._rate = PrefillRate()
        self._seq = 0
        self._epoch = 0

    @property
    def cache_root(self) -> str:
        """Hex root of all block keys of this epoch."""
        return cache_root(self._identity.model, self._identity.kv, self._epoch)

    def next_epoch(self) -> str:
        """Begin another epoch; its cache root."""
        self._epoch += 1
        return self.cache_root

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took `seconds`."""
        if self._times is not None:
            self._times.observe(work_of(plan), seconds)
        prompt_tokens = sum(step.count for step in plan.steps if step.count > 1)
        if prompt_tokens:
            self._rate.observe(prompt_tokens, seconds)

    def state(self, scheduler: Scheduler, now: float) -> EngineState:
        """The state at `now` (s, the clock of the scheduler's arrivals)."""
        self._seq += 1
        pool = scheduler.pool
        evictable = pool.cached
        queued = scheduler.queued()
        fresh = [seq.since for seq in queued if not seq.started]
        holders = held_by(scheduler)
        return EngineState(
            instance=self._identity.instance,
            epoch=self._epoch,
            seq=self._seq,
            model=self._identity.model,
            cache_root=scheduler.cache_root,
            kv_groups=self._identity.kv.groups,
            total=pool.total,
            free=pool.recoverable - evictable,
            evictable=evictable,
            holders=holders,
            running=len(scheduler.running),
            waiting=len(queued),
            queued_tokens=sum(held.queued_tokens for held in holders.values()),
            oldest_waiting_s=now - min(fresh) if fresh else None,
            prefill_rate=self._prefill_rate(scheduler),
            draining=scheduler.draining,
            preemptions=scheduler.preemptions,
            cache=cache_of(scheduler, self._identity.kv),
            step_times=None if self._times is None else self._times.told,
        )

    def _prefill_rate(self, scheduler: Scheduler) -> float:
        """Tokens/s that a new prompt would get beside what runs; before the model is fitted, what prompts have got."""
        if scheduler.pace is None:
            return self._rate.value
        streams = [seq for seq in scheduler.running if seq.known > seq.prompt]
        most = max(1, scheduler.limits.max_batch_tokens - len(streams))
        return scheduler.pace.rate(beside(streams), most) or self._rate.value


def beside(streams: Iterable[Sequence]) -> Streams:
    """What a new prompt would be computed beside."""
    rows, context, target = 0, 0, NO_TARGET_S
    for seq in streams:
        rows += 1
        context += seq.computed + 1
        target = min(target, seq.target_s)
    return Streams(rows, context, None if target == NO_TARGET_S else target)


def held_by(scheduler: Scheduler) -> dict[str, Held]:
    """What each gateway holds. A page that several sequences share is charged to the first of them in the order."""
    requests: dict[str, int] = {}
    pages: dict[str, int] = {}
    queued: dict[str, int] = {}
    seen: set[int] = set()
    for seq in (*scheduler.running, *scheduler.queued()):
        requests[seq.holder] = requests.get(seq.holder, 0) + 1
        queued[seq.holder] = queued.get(seq.holder, 0) + seq.unfilled
        before = len(seen)
        seen.update(seq.pages)
        pages[seq.holder] = pages.get(seq.holder, 0) + len(seen) - before
    return {h: Held(requests=n, pages=pages[h], queued_tokens=queued[h]) for h, n in requests.items()}


def cache_of(scheduler: Scheduler, kv: KvSpec) -> CacheState:
    """What the prefix cache holds and was worth."""
    pool, reuse = scheduler.pool, scheduler.reuse
    page_bytes = PAGE_TOKENS * sum(group.bytes_per_token for group in kv.groups)
    return CacheState(
        blocks=pool.indexed,
        bytes=pool.indexed * page_bytes,
        asked_tokens=reuse.asked_tokens,
        hit_tokens=reuse.hit_tokens,
        saved_prefill_s=reuse.saved_s,
        evictions={reason.value: count for reason, count in pool.evictions.items()},
    )


def cache_root(model: ModelInfo, kv: KvSpec, epoch: int) -> str:
    """Hex root of all block keys: equal roots mean that KV of equal tokens is equal."""
    h = hashlib.sha256()
    for part in ("headrace.cache.root.v1", model.digest, kv.layout, model.kv_dtype, str(epoch)):
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()
