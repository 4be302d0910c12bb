"""Discrete events: clients, gateway, engines, pods and the autoscaler on one virtual clock. Deterministic by seed.

The order of events at one moment: ends of engine steps, pods, clients' departures, arrivals, the gateway's timer, the
autoscaler's tick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from headrace.admission.types import QueueLimits, Refusal
from headrace.bench.desk import LOOK_AGAIN_S, Counts, ExactDesk, FastDesk
from headrace.bench.fleet import Fleet, Pods
from headrace.bench.profile import Profile
from headrace.bench.replica import Replica
from headrace.bench.request import Clients, Ledger, Outcome, Request, ServiceClass
from headrace.bench.trace import Trace
from headrace.routing.types import Settings

TICK_S = 1.0
_STEP, _READY, _FAIL, _DRAINED, _LEAVE, _RETRY, _TIMER, _TICK = range(8)
_TRIES = 3  # of a request on different replicas, before its first token


@dataclass(frozen=True)
class Setup:
    """What is simulated."""

    trace: Trace
    profile: Profile
    classes: tuple[ServiceClass, ...]
    slots: int  # requests that a replica takes at one time
    start: int  # replicas that are ready at the beginning
    pods: Pods = field(default_factory=Pods)
    clients: Clients = field(default_factory=Clients)
    limits: QueueLimits = field(default_factory=lambda: QueueLimits(requests=1_000_000, bytes=1 << 40))
    routing: Settings = field(default_factory=Settings)
    seed: int = 1
    exact: bool = False  # ask production's `pick` for each request
    margin_s: float = 0.0  # of the TTFT target that the gateway's deadline leaves to the engine, beside the own prefill


class Scaler(Protocol):
    """Decides each second how many replicas there should be."""

    def decide(self, simulation: Simulation, now: float) -> int:
        """The number of replicas wanted."""


class Simulation:
    """One run. `run()` once."""

    def __init__(self, setup: Setup, scaler: Scaler):
        self.setup = setup
        self.scaler = scaler
        trace = setup.trace
        self.fleet = Fleet(setup.pods, setup.profile, setup.slots, trace.blocks is not None, setup.seed + 1)
        kind = ExactDesk if setup.exact else FastDesk
        self.desk = kind(setup.profile, setup.classes, setup.limits, setup.routing, setup.margin_s)
        self.ledger = Ledger.of(trace, setup.classes, setup.clients, setup.seed + 2)
        self.random = np.random.default_rng(setup.seed + 3)
        self.now = 0.0
        self.last_arrival: float | None = None
        self.history: list[tuple[float, int, int, int]] = []  # time, wanted, ready, in flight and queued
        self.events = 0
        self.waiting: dict[int, Request] = {}  # in the queue, by index
        self._heap: list[tuple[float, int, int, object, int]] = []
        self._serial = 0
        self._timer = False
        self._open = 0  # requests that have arrived and not ended
        self._retries = 0  # on their way

    def run(self) -> Simulation:
        """To the end of the last request."""
        self._begin()
        arrived, prompts = self.ledger.arrived.tolist(), self.ledger.prompt.tolist()
        outputs, services = self.ledger.output.tolist(), self.ledger.service.tolist()
        tenants = self.ledger.tenant.tolist()
        blocks, heap, index, count = self.setup.trace.blocks, self._heap, 0, len(arrived)
        while True:
            upcoming = arrived[index] if index < count else math.inf
            if heap[0][0] <= upcoming:
                if upcoming == math.inf and not self._open and not self._retries:
                    break
                self._event(heappop(heap))
                continue
            self.now = upcoming
            request = Request(index, upcoming, prompts[index], outputs[index], services[index])
            request.tenant = tenants[index]
            if blocks is not None:
                request.blocks = blocks.of(index)
            index += 1
            self._arrive(request)
        self.fleet.count(self.now)
        return self

    def _begin(self) -> None:
        for replica in self.fleet.start(self.setup.start, 0.0):
            self._schedule(self.fleet.lifetime(), _FAIL, replica)
        self.desk.set_replicas(list(self.fleet.ready.values()))
        self._schedule(TICK_S, _TICK, None)

    def _schedule(self, at: float, kind: int, what: object, version: int = 0) -> None:
        if at < math.inf:
            self._serial += 1
            heappush(self._heap, (at, kind * 1_000_000_000 + self._serial, kind, what, version))

    def _event(self, entry: tuple[float, int, int, object, int]) -> None:
        self.events += 1
        self.now, _, kind, what, version = entry
        if kind == _STEP and isinstance(what, Replica):
            if what.version == version:
                what.advance(self.now, self)
                self._wait_for(what)
                if len(self.desk.queue):
                    self._pump()
        elif isinstance(what, Replica):
            self._pod(kind, what)
        elif isinstance(what, Request):
            self._client(kind, what)
        elif kind == _TIMER:
            self._timer = False
            self._pump()
        else:
            self._tick()

    def _wait_for(self, replica: Replica) -> None:
        due = replica.due
        if due < math.inf:
            self._serial += 1
            heappush(self._heap, (due, self._serial, _STEP, replica, replica.version))

    def _pod(self, kind: int, replica: Replica) -> None:
        if kind == _READY:
            if self.fleet.became_ready(replica, self.now):
                self._schedule(self.now + self.fleet.lifetime(), _FAIL, replica)
        elif kind == _DRAINED:
            if replica.serial in self.fleet.draining:
                self._abandon(replica)
                self._load(self.fleet.drained(replica, self.now))
        elif replica.serial in self.fleet.ready or replica.serial in self.fleet.draining:
            self._abandon(replica)
            self._load(self.fleet.failed(replica, self.now))
        self._replicas_changed()

    def _abandon(self, replica: Replica) -> None:
        """The replica ends with requests on it: those without a token go elsewhere, the others are errors."""
        replica.version += 1
        replica.due = math.inf
        for request in sorted(replica.all_requests(), key=lambda r: r.index, reverse=True):
            self.desk.released(request, replica)
            request.place = -1
            if request.first >= 0 or request.tries >= _TRIES:
                self._end(request, Outcome.ERROR)
                continue
            request.tries += 1
            request.avoid = (*request.avoid, replica.serial)
            request.left, request.cached, request.context = request.prompt, 0, 0
            self._submit(request)

    def _replicas_changed(self) -> None:
        self.desk.set_replicas(list(self.fleet.ready.values()))
        self._pump()

    def _load(self, begun: Sequence[Replica]) -> None:
        for replica in begun:
            self._schedule(self.now + self.fleet.cold_start(), _READY, replica)

    def _arrive(self, request: Request) -> None:
        self.last_arrival = self.now
        self._open += 1
        clients = self.setup.clients
        if clients.cancel_share and self.random.random() < clients.cancel_share:
            self._schedule(self.now + float(self.random.exponential(clients.cancel_after_s)), _LEAVE, request)
        self._submit(request)

    def _submit(self, request: Request) -> None:
        found = self.desk.submit(request, self.now)
        if isinstance(found, Replica):
            self._dispatch(request, found)
        elif isinstance(found, Refusal):
            self._refused(request)
        else:
            self.waiting[request.index] = request
            if not self._timer:
                self._timer = True
                self._schedule(self.now + LOOK_AGAIN_S, _TIMER, None)

    def _dispatch(self, request: Request, replica: Replica) -> None:
        self.waiting.pop(request.index, None)
        before = replica.version
        replica.submit(request, self.now)
        if replica.version != before:
            self._wait_for(replica)

    def _pump(self) -> None:
        for expired in self.desk.pump(self.now, self._dispatch):
            self.waiting.pop(expired.item.payload.index, None)
            self._refused(expired.item.payload)
        if len(self.desk.queue) and not self._timer:
            self._timer = True
            expiry = self.desk.queue.next_expiry()
            wait = LOOK_AGAIN_S if expiry is None else min(LOOK_AGAIN_S, max(0.0, expiry - self.now) + 0.001)
            self._schedule(self.now + wait, _TIMER, None)

    def _refused(self, request: Request) -> None:
        self._end(request, Outcome.SHED)
        clients = self.setup.clients
        if request.index < len(self.ledger.arrived) and clients.retries > 0:
            self._retries += 1
            self._schedule(self.now + float(self.random.exponential(clients.retry_after_s)), _RETRY, request)

    def _client(self, kind: int, request: Request) -> None:
        if kind == _RETRY:
            self._retries -= 1
            index = self.ledger.again(request.index)
            again = Request(index, self.now, request.prompt, request.output, request.service)
            again.blocks, again.tenant = request.blocks, request.tenant
            self._arrive(again)
        elif not self.ledger.outcome[request.index]:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        if self.waiting.pop(request.index, None) is not None:
            self.desk.forget(request)
        replica = self.fleet.ready.get(request.place) or self.fleet.draining.get(request.place)
        if replica is not None:
            before = replica.version
            replica.remove(request, self.now)
            self.desk.released(request, replica)
            if replica.version != before:
                self._wait_for(replica)
            self._left(replica)
        self._end(request, Outcome.CANCELLED)

    def first_token(self, request: Request, now: float) -> None:
        """For replicas."""
        replica = self.fleet.ready.get(request.place) or self.fleet.draining[request.place]
        self.desk.first_token(request, replica, now)

    def finished(self, request: Request, replica: Replica, now: float) -> None:
        """For replicas."""
        self.desk.released(request, replica)
        self.desk.learn(request.output)
        service = self.setup.classes[request.service]
        ttft = request.first - request.arrived
        tpot = (now - request.first) / (request.output - 1) if request.output > 1 else 0.0
        self.ledger.ttft[request.index], self.ledger.tpot[request.index] = ttft, tpot
        good = ttft <= service.ttft_s and tpot <= service.tpot_s
        self._end(request, Outcome.GOOD if good else Outcome.LATE)
        if replica.draining:
            self._left(replica)

    def _left(self, replica: Replica) -> None:
        if replica.draining and not replica.requests and replica.serial in self.fleet.draining:
            self._load(self.fleet.drained(replica, self.now))

    def _end(self, request: Request, outcome: Outcome) -> None:
        self.ledger.end(request.index, outcome, self.now)
        self._open -= 1
        counts = self.desk.counts[request.service]
        name = outcome.name.lower()
        counts.outcomes[name] = counts.outcomes.get(name, 0) + 1
        service = self.setup.classes[request.service]
        late = (request.first if request.first >= 0 else self.now) - request.arrived > service.ttft_s
        if outcome is not Outcome.CANCELLED or late:
            counts.offered += 1
            served = request.output if outcome in (Outcome.GOOD, Outcome.LATE) else request.generated
            counts.offered_tokens += request.prompt + served
        if outcome in (Outcome.GOOD, Outcome.LATE):
            counts.answered.add(request.prompt, request.cached, request.output)

    def _tick(self) -> None:
        fleet = self.fleet
        flying = sum(c.in_flight for c in self.desk.counts) + len(self.desk.queue)
        self.history.append((self.now, fleet.wanted, len(fleet.ready), flying))
        begun, drained = fleet.scale(self.scaler.decide(self, self.now), self.now)
        self._load(begun)
        for replica in drained:
            self._schedule(self.now + fleet.pods.drain_s, _DRAINED, replica)
        if drained:
            self._replicas_changed()
        self._schedule(self.now + TICK_S, _TICK, None)

    @property
    def counts(self) -> list[Counts]:
        """The gateway's counters by class."""
        return self.desk.counts
