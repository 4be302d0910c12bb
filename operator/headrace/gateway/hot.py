"""The hot route: a raw ASGI application that takes each request through the stages of README.md."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.admission.quota import QuotaLedger, Reservation
from headrace.admission.retry import header
from headrace.admission.types import Ask
from headrace.gateway.account import Account
from headrace.gateway.body import Body, decode_chat, decode_completion
from headrace.gateway.call import Call, check_context, client_deadline, context_of, request_ids
from headrace.gateway.client import (
    PATIENCE,
    BodyLate,
    ClientGone,
    Downstream,
    Message,
    Presence,
    Receive,
    Scope,
    Send,
    not_synced,
    read_body,
    too_large,
)
from headrace.gateway.counting import Counting, estimate, takes_long
from headrace.gateway.dialects import CHAT_PATH, COMPLETION_PATH
from headrace.gateway.dispatch import STALLED_RETRY_S, Dispatcher
from headrace.gateway.exchange import Exchange, Stage, say_limit
from headrace.gateway.front import HANG_UP, MALFORMED
from headrace.gateway.identity import authenticate, check_headers, resolve
from headrace.gateway.journal import Line, endpoint_of
from headrace.gateway.ledger import Books, Outcome, Times
from headrace.gateway.rest import REQUEST_ID
from headrace.gateway.world import World
from headrace_wire.reasons import Reason, RequestError

App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]
Decode = Callable[[bytearray], Body]
UNREAD = 64 * 1024  # bytes of a refused request's body that are worth reading to keep its connection
_DECODERS: dict[str, Decode] = {CHAT_PATH: decode_chat, COMPLETION_PATH: decode_completion}


@dataclass(frozen=True)
class Parts:
    """What serving a request needs, built once by `main`."""

    world: World
    quotas: QuotaLedger
    dispatcher: Dispatcher
    books: Books
    stage: Stage


def leaves_unread(headers: Headers) -> bool:
    """A refused request's body may still be on its way, or may never come: the connection cannot be used again."""
    length = headers.get(b"content-length", b"0")
    whole = length.isdigit() and len(length) < 9 and int(length) <= UNREAD
    return not whole or b"expect" in headers or b"transfer-encoding" in headers


class Gateway:
    """The ASGI application of the clients' port; other routes go to `rest`."""

    def __init__(self, parts: Parts, rest: App):
        self._parts = parts
        self._stage = parts.stage
        self._settings = parts.stage.settings
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        headers: Headers = dict(scope["headers"])
        line = Line(*request_ids(headers.get(b"x-request-id")), endpoint_of(scope["path"]), self._stage.clock())
        decode = _DECODERS.get(scope["path"])
        if decode is None or scope["method"] != "POST":
            await self._serve_rest(line, scope, receive, send)
            return
        presence = Presence(receive)
        down = Downstream(send, presence, line.request_id.encode(), self._settings.stall_s)
        try:
            check_headers(scope["headers"], headers)
            call = await self._understand(scope, receive, decode, line)
        except RequestError as error:
            self._stage.metrics.refused.labels(error.reason.value).inc()
            self._note((line.namespace, line.tenant), None, error.reason.value)
            if isinstance(error, BodyLate) or leaves_unread(headers):
                down.headers[b"connection"] = b"close"
            await self._patiently(scope, down.fail(error))
            line.refused(error.reason.value, down.status, self._stage.clock())
        except ClientGone as gone:
            line.refused(gone.reason.value, None, self._stage.clock())
        else:
            if await self._serve(call, presence, down, line) and HANG_UP in scope:
                scope[HANG_UP]()  # or what is left to be read would keep the connection

    async def _serve_rest(self, line: Line, scope: Scope, receive: Receive, send: Send) -> None:
        """A route that is not hot: its answer bears an id, and leaves a line like any other."""
        status, reason = None, ""

        async def told(message: Message) -> None:
            nonlocal status, reason
            if message["type"] == "http.response.start":
                status = message["status"]
                reason = dict(message["headers"]).get(b"x-headrace-reason", b"").decode()
                message["headers"] = [*message["headers"], (b"x-request-id", line.request_id.encode())]
            await self._patiently(scope, send(message))

        scope[REQUEST_ID] = line.request_id
        try:
            await self._rest(scope, receive, told)
        finally:
            line.other(reason, status, self._stage.clock())

    async def _patiently(self, scope: Scope, sending: Awaitable[None]) -> None:
        """Send, and hang up on a client that reads nothing for as long as the stall limit."""
        timer = None
        if self._settings.stall_s and HANG_UP in scope:
            timer = asyncio.get_running_loop().call_later(self._settings.stall_s, scope[HANG_UP])
        try:
            await sending
        finally:
            if timer is not None:
                timer.cancel()

    async def _understand(self, scope: Scope, receive: Receive, decode: Decode, line: Line) -> Call:
        """Identify, decode, resolve. Raises RequestError, ClientGone."""
        world, settings, headers = self._parts.world, self._settings, dict(scope["headers"])
        if not world.synced:
            raise not_synced()
        tenant = authenticate(headers.get(b"authorization"), world.keys, self._stage.wall())
        line.namespace, line.tenant = tenant.metadata.namespace, tenant.metadata.name
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > PATIENCE * settings.body_bytes:
            raise too_large(settings.body_bytes)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError(Reason.INVALID_REQUEST, "compressed bodies are not supported")
        deadline_s = client_deadline(headers.get(b"x-headrace-deadline-ms"))
        data = await read_body(receive, settings.body_bytes, settings.body_s)
        if MALFORMED in scope:
            raise RequestError(Reason.INVALID_REQUEST, scope[MALFORMED])
        arrived = self._stage.clock()
        body = decode(data)
        wanted = headers.get(b"x-headrace-class")
        target = resolve(world, tenant, body.model, None if wanted is None else wanted.decode("latin-1"))
        guess = estimate(len(data))
        return Call(line.engine_id, target, body, len(data), Times(arrived), guess, deadline_s)

    async def _serve(self, call: Call, presence: Presence, down: Downstream, line: Line) -> bool:
        """Everything from here on ends in one outcome, and in an answer if there is anybody to answer.

        True: there is somebody, who reads nothing.
        """
        down.headers[b"x-headrace-class"] = call.target.service.name.encode()
        book = self._parts.books.book(call.model, call.target.service.name)
        account = Account(call, book, self._stage.metrics, self._stage.clock, self._stage.wall)
        try:
            with account, presence:
                try:
                    await self._admit(call, account, down)
                except RequestError as error:
                    account.error = error
                    await down.fail(error)
        except ClientGone as gone:
            return gone.reason is Reason.SLOW_READER
        except asyncio.CancelledError:
            await down.fail(RequestError(Reason.DRAINING, "the gateway is stopping", retry_after=1))
        except Exception:  # noqa: BLE001  the account has logged it; the client gets an answer all the same
            await down.fail(RequestError(Reason.INTERNAL, "the gateway failed"))
        finally:
            down.quiet()
            self._note(call.tenant, account.outcome, account.reason)
            line.ended(call, account, down.status, self._stage.clock())
        return False

    def _note(self, tenant: tuple[str, str], outcome: Outcome | None, code: str) -> None:
        """Count what became of a tenant's request, if it is known and still there."""
        if tenant in self._parts.world.tenants:
            self._parts.books.tenant(tenant).end(outcome, code)

    async def _admit(self, call: Call, account: Account, down: Downstream) -> None:
        """Count, check, reserve, queue, relay. Raises RequestError, ClientGone."""
        settings, stage = self._settings, self._stage
        why = None if stage.fleet.may_serve(call.model) else self._parts.world.why_stalled(call.target.model)
        if why is not None:
            told = f"the model {call.body.model!r} cannot start, and waiting will not help ({why})"
            raise RequestError(Reason.NO_CAPACITY, told, retry_after=STALLED_RETRY_S)
        if (held := self._parts.dispatcher.held(call.model, stage.wall())) is not None:
            raise held
        if call.body.streams:
            down.keep_alive(settings.hold_s, settings.beat_s)
        tokenizer, context = stage.counter.tokenizer(call.model), self._context(call)
        if tokenizer is not None:
            if takes_long(call.body, call.size):  # whose quota is used up gets nothing counted
                self._reserve(call, account, down, Ask(1, 1, call.body.choices))
            began = stage.clock()
            counting = stage.counter.count(tokenizer, Counting(call.body, call.size, call.tenant, context))
            call.take_counts(await self._parts.dispatcher.in_time(call, counting))
            stage.metrics.count.observe(stage.clock() - began)
            context = self._context(call)  # as it is now
            check_context(call.longest_prompt, context, call.body.prompt_field)
        call.fit(context, settings.default_output)
        say_limit(call, down)
        self._reserve(call, account, down, call.ask())
        ticket = self._parts.dispatcher.submit(call)
        try:
            await Exchange(stage, call, ticket, account, down).run()
        finally:
            ticket.close()

    def _context(self, call: Call) -> int | None:
        return context_of(call.target.model, self._stage.fleet.context(call.model))

    def _reserve(self, call: Call, account: Account, down: Downstream, ask: Ask) -> None:
        """Take this of the tenant's quota, in place of what the request holds of it already. Raises RequestError."""
        quotas, now = self._parts.quotas, self._stage.wall()
        tenant = self._parts.world.tenants.get(call.tenant)  # as it is now: counting may have taken a while
        if tenant is None:
            raise RequestError(Reason.UNAUTHORIZED, "the API key is not known any more")
        quotas.configure(call.tenant, tenant.spec.quota)
        if account.reservation is not None:
            account.reservation.cancel(now)  # every limit is asked again: counting may have taken a while
        reserved = quotas.reserve(call.tenant, ask, now)
        for kind, left in quotas.allowances(call.tenant, now).items():
            down.headers[b"x-ratelimit-limit-" + kind] = b"%d" % left.limit
            down.headers[b"x-ratelimit-remaining-" + kind] = b"%d" % left.remaining
            down.headers[b"x-ratelimit-reset-" + kind] = b"%ds" % (header(left.reset_s) if left.reset_s else 0)
        if not isinstance(reserved, Reservation):
            raise reserved.error()
        account.reservation = reserved
