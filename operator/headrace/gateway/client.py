"""The client's half of a request: its body, whether it is still there, and what it is sent. No policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from headrace.admission.retry import header
from headrace.gateway.events import KEEP_ALIVE
from headrace_wire.reasons import Reason, RequestError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
PATIENCE = 4  # times the limit

JSON = (b"content-type", b"application/json")
SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ClientGone(Exception):
    """The client has left, or reads nothing; there is nobody to answer."""

    def __init__(self, reason: Reason):
        super().__init__(reason.value)
        self.reason = reason


class BodyLate(RequestError):
    """The body did not arrive in time."""


async def read_body(receive: Receive, limit: int, wait_s: float) -> bytearray:
    """The whole body. Raises RequestError (too large, too slow) or ClientGone.

    A body above the limit is read on without being kept, up to PATIENCE times the limit: a client that still writes
    when the connection closes may never see the answer.
    """
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(wait_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone(Reason.CANCELLED)
                piece = message.get("body", b"")
                size += len(piece)
                if size <= limit:
                    body += piece
                else:
                    body.clear()
                if not message.get("more_body", False) or size > PATIENCE * limit:
                    break
    except TimeoutError as error:
        raise BodyLate(Reason.INVALID_REQUEST, f"the body did not arrive within {wait_s:g} s") from error
    if size > limit:
        raise too_large(limit)
    return body


def too_large(limit: int) -> RequestError:
    """The error for a body above the limit."""
    return RequestError(Reason.BODY_TOO_LARGE, f"the body has more than {limit} bytes")


def not_synced() -> RequestError:
    """The error while nobody's key can be told from a wrong one."""
    return RequestError(Reason.NO_CAPACITY, "the gateway has not read the cluster yet", retry_after=1)


class Presence:
    """Cancels the task that serves a request when its client leaves, in whatever phase that is.

    Use as a context; a cancellation of this origin leaves it as ClientGone.
    """

    def __init__(self, receive: Receive):
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None  # ends by itself when the response is complete
        self._reason: Reason | None = None
        self.answered = False  # set before the last bytes are sent: leaving then is no cancel

    def __enter__(self) -> Presence:
        self._task = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        reason, self._reason = self._reason, None
        self.answered = True
        if reason is not None and isinstance(error, asyncio.CancelledError) and self._task is not None:
            self._task.uncancel()
            raise ClientGone(reason) from error

    def leave(self, reason: Reason) -> None:
        """End the request: the client is gone for `reason`. Leaving after the last bytes were sent is nothing."""
        if self.answered and reason is Reason.CANCELLED:
            return
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave(Reason.CANCELLED)


class Downstream:
    """What the client is sent. Headers wait for the first event; a stream that waits long gets comments meanwhile."""

    def __init__(self, send: Send, presence: Presence, request_id: bytes, stall_s: float):
        self._send = send
        self._presence = presence
        self._stall_s = stall_s  # seconds a send may block; 0: no limit
        self._timer: asyncio.TimerHandle | None = None
        self._beats: asyncio.Task[None] | None = None
        self.headers: dict[bytes, bytes] = {b"x-request-id": request_id}
        self.started = False
        self.complete = False  # the last bytes were sent, or were being sent: nothing can follow
        self.status: int | None = None  # what the client was told; None: nothing yet

    def keep_alive(self, hold_s: float, beat_s: float) -> None:
        """After `hold_s` seconds without a word send the 200 and a comment, and more each `beat_s` seconds."""

        def begin() -> None:
            self._beats = loop.create_task(self._beat(beat_s))

        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(hold_s, begin)

    async def write(self, data: bytes) -> None:
        """Send a piece of the stream; the 200 goes first."""
        self.quiet()
        await self._write(data)

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece of the stream."""
        self.quiet()
        if not self.started:
            await self._start(200, SSE)
        self._presence.answered = self.complete = True
        await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole JSON answer."""
        self.quiet()
        await self._start(status, [JSON, (b"content-length", b"%d" % len(body)), *headers])
        self._presence.answered = self.complete = True
        await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: RequestError) -> None:
        """An error answer; after the 200 an error event and no [DONE]; after the whole answer nothing."""
        if self.complete:
            return
        body = error_body(error, self.headers[b"x-request-id"].decode())
        if self.started:
            await self.finish(b"data: " + body + b"\n\n")
        else:
            await self.answer(error.reason.status, body, error_headers(error))

    def quiet(self) -> None:
        """No more comments. One that is being sent is either sent whole or not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None

    async def _beat(self, beat_s: float) -> None:
        while True:
            await self._write(KEEP_ALIVE)
            await asyncio.sleep(beat_s)

    async def _write(self, data: bytes) -> None:
        if not self.started:
            await self._start(200, SSE)
        await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self, status: int, headers: Headers) -> None:
        message: Message = {"type": "http.response.start", "status": status}
        message["headers"] = [*(pair for pair in headers if pair[0] not in self.headers), *self.headers.items()]
        self.status = status
        await self._put(message)
        self.started = True

    async def _put(self, message: Message) -> None:
        if not self._stall_s:
            await self._send(message)
            return
        timer = asyncio.get_running_loop().call_later(self._stall_s, self._presence.leave, Reason.SLOW_READER)
        try:
            await self._send(message)
        finally:
            timer.cancel()


def error_body(error: RequestError, request_id: str) -> bytes:
    """The error object, with the id under which our log has the request."""
    body = error.body()
    body["error"]["request_id"] = request_id
    return msgspec.json.encode(body)


def error_headers(error: RequestError) -> Headers:
    """Headers that tell a client when to come back, and a machine why."""
    headers: Headers = [(b"x-headrace-reason", error.reason.value.encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % header(error.retry_after)))
    elif error.reason.status in (429, 503):
        headers.append((b"retry-after", b"1"))  # an engine's refusal that says nothing of when
    if error.reason is Reason.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.reason in (Reason.BODY_TOO_LARGE, Reason.DRAINING):
        headers.append((b"connection", b"close"))
    return headers
