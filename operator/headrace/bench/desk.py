"""The gateway in the simulator: the production queue, and the production choice of a replica or a fast form of it.

Both desks order, age and shed with `headrace.admission.queue.FairQueue`. `ExactDesk` asks `headrace.routing.pick.pick`
for each request, with a `LoadLedger` and the engines' reports. `FastDesk` applies the same rules to numbers that the
replicas carry: with one gateway, the reports add nothing to its own ledger, so both choose alike (a test compares
them). An empty queue is passed by: what is pushed and taken at once was never queued.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.admission.deadline import StartDelays
from headrace.admission.queue import FairQueue
from headrace.admission.types import Blocked, ClassRule, Expired, Item, QueueLimits, Refusal
from headrace.api.gateway_state import Answered
from headrace.bench.profile import Profile
from headrace.bench.replica import Replica
from headrace.bench.request import Request, ServiceClass
from headrace.routing.breaker import Breakers
from headrace.routing.ledger import LoadLedger, predicted_pages
from headrace.routing.pick import View, pick
from headrace.routing.types import Endpoint, NoCapacity, RouteRequest, Settings
from headrace_wire.protocol import EngineState, Held, ModelInfo

EXPECTED_OUTPUT = 128.0  # tokens, until answers have been seen; as in the gateway
LEARNING, MARGIN = 0.05, 1.5  # as in the gateway
OUTPUT_LIMIT = 4096
LOOK_AGAIN_S = 0.25
COST_DIGITS = 6  # to which `pick` tells costs apart


@dataclass
class Counts:
    """What the gateway's state counts for one class."""

    outcomes: dict[str, int] = field(default_factory=dict)
    offered: int = 0
    admitted: int = 0
    offered_tokens: int = 0
    in_flight: int = 0
    answered: Answered = field(default_factory=Answered)


class FastDesk:
    """The queue of one Model and its choice among `replicas` (those that serve, in order of their serial numbers)."""

    def __init__(
        self,
        profile: Profile,
        classes: Sequence[ServiceClass],
        limits: QueueLimits,
        settings: Settings,
        margin_s: float = 0.0,
    ):
        self.profile, self.classes, self.settings = profile, classes, settings
        rules = {c.name: ClassRule(c.priority, max(c.ttft_s / 2, c.ttft_s - margin_s)) for c in classes}
        self.queue: FairQueue[Request] = FairQueue(limits, rules)
        self.replicas: list[Replica] = []
        self._items: dict[int, Item[Request]] = {}  # queued, by the request's index
        self.counts = [Counts() for _ in classes]
        self.expected = EXPECTED_OUTPUT
        self.rate = 1.0 / (profile.per_prefill_token_seconds or 1e-9)
        self._starts = StartDelays()
        self._total_pages = profile.kv_tokens // profile.page_tokens
        self._young_until = -math.inf  # no replica is in its slow start after that

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Who serves now."""
        self.replicas = sorted(replicas, key=lambda r: r.serial)
        young = max((r.ready_at for r in self.replicas), default=-math.inf)
        self._young_until = young + self.settings.slow_start_s
        self.queue.set_endpoints(bool(self.replicas))

    def submit(self, request: Request, now: float) -> Replica | Refusal | None:
        """A replica at once, a refusal, or a place in the queue (None)."""
        if not len(self.queue) and self.replicas:
            found = self.choose(request, now)
            if isinstance(found, Replica):
                self.granted(request, found, now)
                return found
        service = self.classes[request.service]
        tenant = ("default", f"tenant-{request.tenant}")
        item = Item(str(request.index), tenant, service.name, request.arrived, request, request.prompt)
        item.cold = bool(request.avoid)  # what has failed elsewhere is not shed by its class any more
        refused = self.queue.push(item, self.rate, bool(request.avoid), self._starts.usual_s(now))
        if refused is None:
            self._items[request.index] = item
        return refused

    def pump(self, now: float, dispatch: Callable[[Request, Replica], None]) -> list[Expired[Request]]:
        """Shed what is too late, dispatch what fits."""
        expired = self.queue.expire(now)
        for late in expired:
            self._items.pop(late.item.payload.index, None)
        if self.replicas:
            while (taken := self.queue.take(lambda item: self.choose(item.payload, now), now)) is not None:
                self.granted(taken[0].payload, taken[1], now)
                dispatch(taken[0].payload, taken[1])
        return expired

    def choose(self, request: Request, now: float) -> Replica | Blocked:
        """The rules of `headrace.routing.pick` on one gateway's own ledger."""
        ttft, rate = self.classes[request.service].ttft_s, self.rate
        pages, total, page = self._pages(request), self._total_pages, self.profile.page_tokens
        left = ttft - (now - request.arrived)
        allowed = self.settings.prefill_share * (left if left > ttft / 4 else ttft / 4) * rate
        able: list[Replica] = []
        least = near = math.inf
        blocked = Blocked.ALL
        young = now < self._young_until and not all(
            now - r.ready_at < self.settings.slow_start_s for r in self.replicas
        )
        for replica in self.replicas if not request.avoid else self._serving(request):
            slots, requests, taken = replica.slots, replica.requests, replica.pages
            if young:
                slots = self._slots(replica, now)
            if replica.held > taken * page:
                taken = min(total, -(-replica.held // page))
            if requests:
                if requests >= slots:
                    continue
                if taken + pages > total:
                    blocked = Blocked.ITEM
                    continue
                if replica.queued > allowed:
                    continue
            share = requests / slots
            if taken > share * total:
                share = taken / total
            cost = share + replica.queued / rate / ttft
            if cost >= near:
                continue
            cost = round(cost, COST_DIGITS)
            if cost < least:
                able, least, near = [replica], cost, cost + 10.0**-COST_DIGITS
            elif cost == least:
                able.append(replica)
        if not able:
            return blocked
        return able[0] if len(able) == 1 else min(able, key=lambda r: tie(request.index, r.serial))

    def _serving(self, request: Request) -> Sequence[Replica]:
        if not request.avoid:
            return self.replicas
        return [r for r in self.replicas if r.serial not in request.avoid] or self.replicas

    def _slots(self, replica: Replica, now: float) -> int:
        grown = max(0.0, now - replica.ready_at) / self.settings.slow_start_s
        return replica.slots if grown >= 1 else max(1, math.ceil(replica.slots * grown))

    def _pages(self, request: Request) -> int:
        return -(-(request.prompt + self.predicted()) // self.profile.page_tokens)

    def predicted(self) -> int:
        """Output tokens that a request is expected to have."""
        return min(OUTPUT_LIMIT, int(self.expected * MARGIN) + 1)

    def granted(self, request: Request, replica: Replica, now: float) -> None:
        """Count a request on a replica."""
        request.dispatched = now
        self._items.pop(request.index, None)
        request.pages, request.queued = self._pages(request), request.prompt
        replica.requests += 1
        replica.pages += request.pages
        replica.queued += request.queued
        counts = self.counts[request.service]
        counts.in_flight += 1
        counts.admitted += request.tries == 1 or not request.avoid

    def first_token(self, request: Request, replica: Replica, now: float) -> None:
        """Prefill is done."""
        self._starts.record(now, now - request.dispatched, request.prompt / self.rate)
        replica.queued -= request.queued
        request.queued = 0

    def released(self, request: Request, replica: Replica) -> None:
        """The request has left the replica."""
        replica.requests -= 1
        replica.pages -= request.pages
        replica.queued -= request.queued
        request.pages = request.queued = 0
        self.counts[request.service].in_flight -= 1

    def forget(self, request: Request) -> None:
        """The client of a queued request has left."""
        item = self._items.pop(request.index, None)
        if item is not None:
            self.queue.remove(item)

    def learn(self, output: int) -> None:
        """An answer was completed."""
        self.expected += LEARNING * (output - self.expected)


class ExactDesk(FastDesk):
    """Asks production's `pick`. The reports are made for each choice, so they are never late."""

    def __init__(
        self,
        profile: Profile,
        classes: Sequence[ServiceClass],
        limits: QueueLimits,
        settings: Settings,
        margin_s: float = 0.0,
    ):
        super().__init__(profile, classes, limits, settings, margin_s)
        self._ledger = LoadLedger()
        self._view = View("gateway", self._ledger, Breakers(), settings)

    def choose(self, request: Request, now: float) -> Replica | Blocked:
        endpoints = [self._endpoint(replica, now) for replica in self.replicas]
        found = pick(self._route(request, now), endpoints, self._view, now)
        if isinstance(found, NoCapacity):
            return Blocked.ITEM if found.why.this_request_only else Blocked.ALL
        return next(r for r in self.replicas if str(r.serial) == found.id)

    def granted(self, request: Request, replica: Replica, now: float) -> None:
        super().granted(request, replica, now)
        request.load = self._ledger.dispatch(str(replica.serial), self._route(request, request.arrived))

    def first_token(self, request: Request, replica: Replica, now: float) -> None:
        super().first_token(request, replica, now)
        if request.load is not None:
            request.load.tokens_seen(1)

    def released(self, request: Request, replica: Replica) -> None:
        super().released(request, replica)
        if request.load is not None:
            request.load.release()

    def _route(self, request: Request, now: float) -> RouteRequest:
        others = any(r.serial not in request.avoid for r in self.replicas)
        return RouteRequest(
            id=str(request.index),
            prompt_tokens=request.prompt,
            predicted_output=self.predicted(),
            ttft_s=self.classes[request.service].ttft_s,
            waited_s=now - request.arrived,
            avoid=frozenset(str(serial) for serial in request.avoid) if others else frozenset(),
        )

    def _endpoint(self, replica: Replica, now: float) -> Endpoint:
        state = report(replica, self.profile, self._ledger.held(str(replica.serial)), now)
        return Endpoint(str(replica.serial), "", replica.ready_at, report=state, reported_at=now)

    def _pages(self, request: Request) -> int:
        return predicted_pages(self._route(request, request.arrived))


def report(replica: Replica, profile: Profile, held: Held, now: float) -> EngineState:
    """What the engine says of itself."""
    total = profile.kv_tokens // profile.page_tokens
    used = min(total, -(-replica.held // profile.page_tokens))
    since = [request.dispatched for request in replica.prefill if request.context <= request.cached]
    waiting = len(since)
    return EngineState(
        instance=f"pod-{replica.serial}",
        model=info(profile, replica.slots),
        total=total,
        free=total - used,
        holders={"gateway": held},
        running=replica.running + len(replica.prefill) - waiting,
        waiting=waiting,
        queued_tokens=sum(request.left for request in replica.prefill),
        oldest_waiting_s=now - min(since) if since else None,
        prefill_rate=1.0 / (profile.per_prefill_token_seconds or 1e-9),
        draining=replica.draining,
        preemptions=replica.preemptions,
        step_times=profile.step_times,
    )


def info(profile: Profile, slots: int) -> ModelInfo:
    """The model as the simulated engines name it."""
    return ModelInfo(
        name=profile.name,
        max_sequences=slots,
        max_batch_tokens=profile.max_batch_tokens,
        max_tokens=profile.kv_tokens,
        page_tokens=profile.page_tokens,
    )


def tie(request: int, replica: int) -> bytes:
    """As `pick` tells equal loads apart."""
    text = f"{len(str(request))}:{request}{replica}"
    return hashlib.sha256(text.encode()).digest()
