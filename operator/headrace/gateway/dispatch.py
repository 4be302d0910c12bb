"""Queues and grants: one desk per Model lets requests wait, and hands each an engine when one can take it.

The order, the deadlines and the choice are pure (`headrace.admission`, `headrace.routing`); here are the futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.admission.deadline import StartDelays, latest, latest_cold
from headrace.admission.queue import FairQueue
from headrace.admission.retry import DrainRate, cold_retry_after, retry_after
from headrace.admission.types import Blocked, ClassRule, Item, QueueLimits
from headrace.api.model import Model
from headrace.api.quantities import seconds
from headrace.gateway.call import Call
from headrace.gateway.engines import Engine, Fleet
from headrace.gateway.ledger import Books, ClassBook
from headrace.gateway.settings import Settings
from headrace.gateway.world import ObjectKey, World
from headrace.planning.replicas import why_held
from headrace.routing.breaker import Breakers, Permit
from headrace.routing.ledger import Load, LoadLedger
from headrace.routing.pick import View, pick
from headrace.routing.types import Endpoint, NoCapacity, RouteRequest
from headrace_wire.reasons import Reason, RequestError

LOOK_AGAIN_S = 0.25  # between two looks at a queue in which nothing else happens: slow starts and breakers move on
EXPECTED_OUTPUT = 128  # tokens of one choice, until the model has been seen
LEARNING = 0.05  # weight of one more answer in the expected output
STALLED_RETRY_S = 60.0  # somebody has to change the Model before another try can help
COUNT_RETRY_S = 5.0  # prompts that are counted are soon counted
MARGIN = 1.5  # of the expected output, that an answer may take without a surprise


V = TypeVar("V")


class Ticket:
    """A request's place: it waits, then has an engine. `close` gives back whatever it holds, on every way out."""

    def __init__(self, desk: Desk, call: Call, book: ClassBook):
        self.call = call
        self.book = book
        self.avoid: frozenset[str] = frozenset()
        self.future: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        self._desk = desk
        self._load: Load | None = None
        self._granted: float | None = None  # when the engine was granted; None once its first token has come
        self._permit: Permit | None = None
        self.item: Item[Ticket] = Item(
            id=call.id,
            tenant=call.tenant,
            service_class=call.target.service.name,
            arrived=call.times.arrived,
            payload=self,
            prompt_tokens=call.prompt_tokens,
            bytes=call.size,
            deadline_s=call.deadline_s,
        )

    def grant(self, engine: Engine, load: Load, permit: Permit, now: float) -> None:
        """The engine is this request's from `now` on."""
        self._load, self._permit, self._granted = load, permit, now
        self.book.in_flight += 1
        if self.call.times.dispatched is None:
            self.book.admitted += 1
            self.call.times.dispatched = now
        self.future.set_result(engine)

    def seen(self, output_tokens: int) -> None:
        """So many output tokens have come."""
        if self._load is not None:
            self._load.tokens_seen(output_tokens)
        if self._granted is not None:
            self._desk.began(self.call.prompt_tokens, self._granted)
            self._granted = None

    def succeeded(self, output_tokens: int) -> None:
        """The engine answered as it should, with so many tokens for each choice."""
        if self._permit is not None:
            self._permit.success()
        self._desk.learn_output(min(output_tokens, self.call.output_limit))

    def failed(self, engine: Engine) -> None:
        """The engine did not answer as it should: it has to report before it gets more."""
        now = self._desk.clock()
        if self._permit is not None:
            self._permit.failure(now)
        engine.suspect(now)

    def again(self, engine: Engine) -> None:
        """Back to the front of the queue, for another engine if there is one; its class no longer sheds it."""
        self._give_back()
        self.avoid |= {engine.address.pod}
        self.future = asyncio.get_running_loop().create_future()
        self.item.cold = True
        self._desk.enqueue(self, front=True)

    def close(self) -> None:
        """The request has ended. Idempotent."""
        self._desk.queue.remove(self.item)
        self.future.cancel()
        self._give_back()

    def _give_back(self) -> None:
        if self._permit is not None:
            self._permit.abandon()  # counts only if neither success nor failure was said
            self._permit = None
        if self._load is not None:
            self._load.release()
            self._load = None
            self.book.in_flight -= 1
            self._desk.released()


class Desk:
    """The queue and the loads of one Model."""

    def __init__(self, model: ObjectKey, hub: Dispatcher):
        self.model = model
        self.clock = hub.clock
        self.queue: FairQueue[Ticket] = FairQueue(hub.limits, {})
        self._hub = hub
        self._loads = LoadLedger()
        self._breakers = Breakers()
        self._view = View(hub.settings.gateway, self._loads, self._breakers)
        self._drain = DrainRate()
        self._starts = StartDelays()
        self._rules: dict[str, ClassRule] = {}
        self._output = float(EXPECTED_OUTPUT)  # tokens of one choice, expected
        self._timer: asyncio.TimerHandle | None = None
        self._closed: RequestError | None = None  # set when the Model is gone

    def submit(self, call: Call) -> Ticket:
        """A place in the queue. Raises RequestError when it is full."""
        books = self._hub.books
        books.last_request[self.model] = call.times.arrived
        ticket = Ticket(self, call, books.book(self.model, call.target.service.name))
        self.enqueue(ticket, front=False)
        return ticket

    def enqueue(self, ticket: Ticket, *, front: bool) -> None:
        """Let a ticket wait. Raises RequestError."""
        now, service = self.clock(), ticket.call.target.service
        if self._closed is not None:
            raise self._closed
        if not front and not len(self.queue) and self._grant_at_once(ticket, now):
            return
        if (held := self._hub.held(self.model)) is not None:
            raise held
        if service.name not in self.queue.classes():  # the objective has changed since the request came
            self.queue.configure({**self._rules, service.name: ClassRule(service.priority, service.ttft_s)})
        self._set_endpoints(now)
        refusal = self.queue.push(ticket.item, self._prefill_rate(), front, self._starts.usual_s(now))
        if refusal is not None:
            raise RequestError(refusal.reason, refusal.message, retry_after=self._retry_after(ticket.item, now))
        self._hub.fleet.hurry(self.model)
        self.pump(now)

    def _grant_at_once(self, ticket: Ticket, now: float) -> bool:
        """Nothing waits: an engine may take the request without it being queued. One that is old or in haste is."""
        call, engines = ticket.call, self._hub.fleet.of(self.model)
        if not engines or call.deadline_s is not None or now - call.times.arrived > call.target.service.ttft_s / 4:
            return False
        place = self._admit(ticket.item, [engine.endpoint() for engine in engines.values()], now)
        if isinstance(place, Blocked):
            return False
        self._grant(ticket, engines, place, now)
        self._hub.fleet.hurry(self.model)
        return True

    def _grant(self, ticket: Ticket, engines: dict[str, Engine], place: tuple[str, RouteRequest], now: float) -> None:
        pod, request = place
        ticket.grant(engines[pod], self._loads.dispatch(pod, request), self._breakers.acquire(pod), now)
        self._drain.record(now)

    def configure(self) -> None:
        """Take the classes that hold for the Model now."""
        model = self._hub.world.models.get(self.model)
        if model is not None:
            self._rules = {c.name: ClassRule(c.priority, c.ttft_s) for c in self._hub.world.classes_of(model)}
            self.queue.configure(self._rules)

    def pump(self, now: float | None = None) -> None:
        """Shed what is too late and grant what fits; look again when the next thing is due."""
        if now is None:
            now = self.clock()
            self._set_endpoints(now)
        for expired in self.queue.expire(now):
            refusal, item = expired.refusal, expired.item
            error = RequestError(refusal.reason, refusal.message, retry_after=self._retry_after(item, now))
            _fail(item.payload, error)
        if len(self.queue) and (held := self._hub.held(self.model)) is not None:
            self._fail_all(held)
        engines = self._hub.fleet.of(self.model)
        endpoints = [engine.endpoint() for engine in engines.values()] if len(self.queue) else []
        while len(self.queue) and (taken := self.queue.take(lambda item: self._admit(item, endpoints, now), now)):
            self._grant(taken[0].payload, engines, taken[1], now)
        self._schedule(now)

    def released(self) -> None:
        """A request has left its engine: there may be room for another."""
        if len(self.queue):
            asyncio.get_running_loop().call_soon(self.pump)

    def began(self, prompt_tokens: int, dispatched: float) -> None:
        """The first token of a request has come that was dispatched then."""
        now, rate = self.clock(), self._prefill_rate()
        self._starts.record(now, now - dispatched, prompt_tokens / rate if rate > 0 else 0.0)

    def learn_output(self, tokens: int) -> None:
        """An answer with so many tokens for each choice was completed."""
        self._output += LEARNING * (tokens - self._output)

    def in_flight(self, pod: str) -> int:
        """This gateway's requests on an engine."""
        return self._loads.held(pod).requests

    def forget_engine(self, pod: str) -> None:
        """The engine is gone; requests that still run there end as they may."""
        self._breakers.forget(pod)

    def end(self, error: RequestError) -> None:
        """Fail every waiting request, and those that would come back: the Model is gone."""
        self._closed = error
        self._fail_all(error)
        if self._timer is not None:
            self._timer.cancel()

    def _fail_all(self, error: RequestError) -> None:
        while (taken := self.queue.take(lambda item: item, float("-inf"))) is not None:
            _fail(taken[0].payload, error)

    def _set_endpoints(self, now: float) -> None:
        self.queue.set_endpoints(self._hub.fleet.exist(self.model, now))

    def _admit(self, item: Item[Ticket], endpoints: list[Endpoint], now: float) -> tuple[str, RouteRequest] | Blocked:
        ticket, call = item.payload, item.payload.call
        choices = call.body.choices
        others = any(endpoint.id not in ticket.avoid for endpoint in endpoints)
        request = RouteRequest(
            id=item.id,
            prompt_tokens=call.prompt_tokens,
            predicted_output=choices * min(call.output_limit, int(self._output * MARGIN) + 1),
            ttft_s=call.target.service.ttft_s,
            waited_s=now - item.arrived,
            choices=choices,
            avoid=ticket.avoid if others else frozenset(),
        )
        found = pick(request, endpoints, self._view, now)
        if isinstance(found, NoCapacity):
            return Blocked.ITEM if found.why.this_request_only else Blocked.ALL
        return found.id, request

    def _schedule(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self.queue):
            expiry = self.queue.next_expiry()
            wait = LOOK_AGAIN_S if expiry is None else min(LOOK_AGAIN_S, max(0.0, expiry - now) + 0.001)
            self._timer = asyncio.get_running_loop().call_later(wait, self.pump)

    def _prefill_rate(self) -> float:
        reports = [engine.report for engine in self._hub.fleet.of(self.model).values()]
        return max((report.prefill_rate for report in reports if report is not None), default=0.0)

    def _retry_after(self, item: Item[Ticket], now: float) -> float:
        if self._hub.fleet.exist(self.model, now):
            return retry_after(len(self.queue), self._drain.rate(now), item.id)
        ages = [self.queue.oldest_age(name, now) or 0.0 for name in self.queue.classes()]
        return cold_retry_after(_cold_start(self._hub.world.models.get(self.model)), max(ages, default=0.0), item.id)


class Dispatcher:
    """The desks of all Models."""

    def __init__(self, world: World, fleet: Fleet, books: Books, settings: Settings, clock: Callable[[], float]):
        self.world = world
        self.fleet = fleet
        self.books = books
        self.settings = settings
        self.clock = clock
        self.limits = QueueLimits(
            requests=settings.queue_requests, bytes=settings.queue_bytes, cold_wait_s=settings.cold_wait_s
        )
        self.desks: dict[ObjectKey, Desk] = {}
        fleet.watch_with(on_change=self._pump, on_gone=self._forget_engine, is_busy=self._is_busy)

    def submit(self, call: Call) -> Ticket:
        """A place in the queue of the call's Model. Raises RequestError when it is full."""
        return self._desk(call.model).submit(call)

    def held(self, model: ObjectKey, wall: float | None = None) -> RequestError | None:
        """Why no engine serves a Model nor will one come while a request waits; None: one may.

        `wall`: unix seconds, by which schedules and an override count; None: they do not.
        """
        known, now = self.world.models.get(model), self.clock()
        if known is None or (self.fleet.may_serve(model) and self.fleet.exist(model, now)):
            return None
        why = why_held(known, wall, self.limits.cold_wait_s)
        if why is None:
            return None
        return RequestError(Reason.NO_CAPACITY, f"the model {model[1]!r} is {why}", retry_after=STALLED_RETRY_S)

    async def in_time(self, call: Call, work: Awaitable[V]) -> V:
        """Wait for what has to be done before the call can be queued. Raises RequestError at its deadline."""
        now, arrived, service = self.clock(), call.times.arrived, call.target.service
        serves = self.fleet.exist(call.model, now)
        if serves:
            until = latest(arrived, ClassRule(service.priority, service.ttft_s), call.deadline_s, 0.0)
        else:
            until = latest_cold(arrived, self.limits.cold_wait_s, call.deadline_s)
        try:
            async with asyncio.timeout(max(0.0, until - now)):
                return await work
        except TimeoutError as error:
            message = f"The prompt was not counted within {until - arrived:.1f} s; other prompts were before it."
            raise RequestError(
                Reason.DEADLINE_EXCEEDED if serves else Reason.NO_CAPACITY, message, retry_after=COUNT_RETRY_S
            ) from error

    def reconcile(self) -> None:
        """Follow the world: classes as they are now; what waits for a Model that is gone is told so."""
        for model in list(self.desks):
            if model not in self.world.models:
                self.desks.pop(model).end(RequestError(Reason.NO_CAPACITY, f"the model {model[1]!r} was deleted"))
                self.books.forget(model)
        for model in self.world.models:
            self._desk(model).configure()

    def _desk(self, model: ObjectKey) -> Desk:
        desk = self.desks.get(model)
        if desk is None:
            desk = self.desks[model] = Desk(model, self)
            desk.configure()
        return desk

    def _pump(self, model: ObjectKey) -> None:
        if (desk := self.desks.get(model)) is not None:
            desk.pump()

    def _forget_engine(self, model: ObjectKey, pod: str) -> None:
        if (desk := self.desks.get(model)) is not None:
            desk.forget_engine(pod)

    def _is_busy(self, model: ObjectKey, pod: str) -> bool:
        desk = self.desks.get(model)
        return desk is not None and (len(desk.queue) > 0 or desk.in_flight(pod) > 0)


def _fail(ticket: Ticket, error: RequestError) -> None:
    if not ticket.future.done():
        ticket.future.set_exception(error)


def _cold_start(model: Model | None) -> float | None:
    """Seconds of the measured median cold start."""
    scaling = None if model is None else model.status.scaling
    if scaling is None or scaling.cold_start is None:
        return None
    try:
        return seconds(scaling.cold_start.p50)
    except ValueError:
        return None
