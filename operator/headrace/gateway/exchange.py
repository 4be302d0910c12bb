"""One request and the engines that it meets: dispatch, the answer, and once more elsewhere if that may help."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.gateway.account import Account
from headrace.gateway.call import Call, check_context, context_of
from headrace.gateway.client import Downstream
from headrace.gateway.counting import Counter, Counting
from headrace.gateway.dispatch import Ticket
from headrace.gateway.engines import Engine, Fleet
from headrace.gateway.events import ErrorObject
from headrace.gateway.metering import Metrics
from headrace.gateway.relay import EngineRefused, Relay, Wish, refused
from headrace.gateway.settings import Settings
from headrace.gateway.upstream import Failure, Head, Pool, UpstreamError
from headrace_wire.reasons import Reason, RequestError

logger = logging.getLogger(__name__)

MAX_ERROR = 64 * 1024  # bytes of an engine's error answer
MAX_ATTEMPTS = 3  # of which only those that cost no engine's work are free of the budget
ELSEWHERE = frozenset(
    {
        Reason.DRAINING,
        Reason.NO_CAPACITY,
        Reason.QUEUE_FULL,
        Reason.ENGINE_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.INTERNAL,
    }
)  # an engine's refusals that another engine may not repeat
FREE = frozenset({Reason.DRAINING, Reason.NO_CAPACITY, Reason.QUEUE_FULL})


class RetryBudget:
    """Bounds retries that repeat an engine's work to a share of the successes, with a few to begin with."""

    def __init__(self, percent: int, most: float = 10.0):
        self._per_success = percent / 100
        self._most = most
        self._left = most

    def succeeded(self) -> None:
        """A request was answered."""
        self._left = min(self._most, self._left + self._per_success)

    def take(self) -> bool:
        """One more retry, if the budget allows."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(frozen=True)
class Stage:
    """What exchanges share."""

    settings: Settings
    pool: Pool
    counter: Counter
    fleet: Fleet
    metrics: Metrics
    budget: RetryBudget
    clock: Callable[[], float]  # monotonic seconds
    wall: Callable[[], float]  # unix seconds


class Exchange:
    """Takes a ticket from the queue to the end of its answer."""

    def __init__(self, stage: Stage, call: Call, ticket: Ticket, account: Account, down: Downstream):
        self._stage = stage
        self._call = call
        self._ticket = ticket
        self._account = account
        self._down = down
        body = call.body
        wish = Wish(
            chat=body.prompt_field == "messages",
            streams=body.streams,
            usage=body.wants_usage,
            choices=body.choices,
            max_answer=stage.settings.max_answer,
        )
        series = stage.metrics.series(call.labels)
        self._relay = Relay(wish, down, account.progress, series.itl, stage.clock)

    async def run(self) -> None:
        """Raises RequestError if there is no answer; after a part of it the client gets that as an event."""
        attempt = 0
        while True:
            engine = await self._ticket.future
            try:
                if attempt == 0:
                    await self._dispatched(engine)
                await self._attempt(engine)
                return
            except (UpstreamError, EngineRefused) as error:
                self._note_failure(engine, error)
                attempt += 1
                if not self._may_retry(error, attempt):
                    raise _explain(error) from error
            self._stage.metrics.retries.labels(*self._call.model).inc()
            self._relay.restart()
            self._ticket.again(engine)

    async def _dispatched(self, engine: Engine) -> None:
        times, stage = self._call.times, self._stage
        if times.dispatched is not None:
            stage.metrics.series(self._call.labels).queue.observe(times.dispatched - times.arrived)
        if not self._call.counted:
            await self._recount(engine)
        elif self._call.context is None:
            self._fit(context_of(self._call.target.model, stage.fleet.context(self._call.model)))

    def _fit(self, context: int | None) -> None:
        """The engines' context is known only now: what was reserved follows it. Raises RequestError."""
        call, stage, reservation = self._call, self._stage, self._account.reservation
        if call.counted:
            check_context(call.longest_prompt, context, call.body.prompt_field)
        call.fit(context, stage.settings.default_output)
        say_limit(call, self._down)
        refusal = None if reservation is None else reservation.amend(call.ask(), stage.wall())
        if refusal is not None:
            raise refusal.error()

    async def _recount(self, engine: Engine) -> None:
        """The tokenizer was unknown when the request came: count now, before anything is sent. Raises RequestError."""
        call, stage = self._call, self._stage
        tokenizer = stage.counter.tokenizer(call.model)
        if tokenizer is None and engine.report is not None:
            await stage.counter.learn(call.model, engine.report.model.tokenizer, engine.address)
            tokenizer = stage.counter.tokenizer(call.model)
        context = context_of(call.target.model, stage.fleet.context(call.model))
        if tokenizer is not None:  # else the engine counts
            asked = Counting(call.body, call.size, call.tenant, context)
            call.take_counts(await stage.counter.count(tokenizer, asked))
        self._fit(context)

    def _request(self, engine: Engine) -> bytes:
        """The request as the engine gets it; each time under another id."""
        call, stage = self._call, self._stage
        hints = call.hints(stage.settings.gateway, stage.clock(), stage.settings.request_s, self._account.sent)
        self._account.sent += 1
        return call.dialect.encode(engine.address.netloc, call.output_limit, hints)

    async def _attempt(self, engine: Engine) -> None:
        """Raises UpstreamError, EngineRefused."""
        call, stage, address = self._call, self._stage, engine.address
        settings = stage.settings
        self._account.engine = address.pod
        connection, head = await stage.pool.start(
            address.host, address.port, lambda: self._request(engine), settings.first_s
        )
        try:
            if head.status != 200:
                raise _refusal(head, await connection.read_all(MAX_ERROR, settings.idle_s))
            if not head.headers.get(b"content-type", b"text/event-stream").startswith(b"text/event-stream"):
                raise UpstreamError(Failure.BROKEN, "the engine's answer is no event stream", untouched=False)
            await self._relay.run(connection, settings.first_s, settings.idle_s, self._ticket.seen)
        except BaseException:
            connection.abort()
            raise
        connection.release()
        self._ticket.succeeded(self._account.progress.output_tokens // call.body.choices)
        stage.budget.succeeded()

    def _note_failure(self, engine: Engine, error: UpstreamError | EngineRefused) -> None:
        if isinstance(error, UpstreamError):
            kind = error.failure.value
        elif error.error.reason in ELSEWHERE:
            kind = error.error.reason.value
        else:
            return  # the request's fault
        self._ticket.failed(engine)
        fields = {**engine.fields(), "engine_id": self._call.id, "kind": kind}
        logger.warning("an engine failed a request", extra=fields)
        self._stage.metrics.upstream_failures.labels(*self._call.model, kind).inc()

    def _may_retry(self, error: UpstreamError | EngineRefused, attempt: int) -> bool:
        """Nothing has gone to the client, another engine may do better, and the budget allows."""
        if self._relay.sent or attempt >= MAX_ATTEMPTS:
            return False
        if isinstance(error, EngineRefused):
            if error.error.reason not in ELSEWHERE:
                return False
            free = error.error.reason in FREE
        else:
            if error.failure in (Failure.TIMEOUT, Failure.TOO_LARGE):
                return False  # it has cost its time already, or would do the same again
            free = error.failure is Failure.CONNECT
        return free or (attempt == 1 and self._stage.budget.take())


def say_limit(call: Call, down: Downstream) -> None:
    """Tell the client of an output limit that it did not choose."""
    if call.output_limit != call.body.output_limit:
        down.headers[b"x-headrace-max-tokens"] = b"%d" % call.output_limit


def _refusal(head: Head, data: bytes) -> EngineRefused:
    """An engine's error answer, before its 200."""
    try:
        wrapped: dict[str, ErrorObject] = msgspec.json.decode(data, type=dict[str, ErrorObject])
        error = wrapped["error"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        error = ErrorObject(message=f"the engine answered with status {head.status}")
    return refused(error, head.status)


def _explain(error: UpstreamError | EngineRefused) -> RequestError:
    """What the client is told."""
    if isinstance(error, EngineRefused):
        return error.error
    if error.failure is Failure.TIMEOUT:
        return RequestError(Reason.ENGINE_TIMEOUT, str(error))
    if error.failure is Failure.CONNECT:
        return RequestError(Reason.ENGINE_FAILED, "the engine could not be reached")
    return RequestError(Reason.ENGINE_FAILED, str(error))
