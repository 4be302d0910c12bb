"""A client's connection: uvicorn's HTTP/1.1 with bounds on what is no body, and error objects for what is not HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.gateway.call import request_ids
from headrace.gateway.client import error_body
from headrace.gateway.journal import Line
from headrace_wire.reasons import Reason, RequestError

MAX_HEAD = 64 * 1024  # bytes of request line and headers, or of trailers or between chunks, up to one read more
MAX_PIPELINED = 8  # requests behind the one that is served; no more is read then
HEAD_S = 30.0  # for a head to arrive whole, and for the first byte of a new connection
FLUSH_S = 120.0  # for a client to read what is left after its connection was closed
HANG_UP = "headrace.hang_up"  # in the ASGI scope: ends the connection at once, unsent bytes and all
MALFORMED = "headrace.malformed"  # in the ASGI scope: what is wrong with the body, which ends there
_WORDS = {400: "Bad Request", 431: "Request Header Fields Too Large"}
_FRAMING = (b"content-length", b"transfer-encoding")


class _Flow(FlowControl):
    """Reads no further while many requests wait: each answer and each wait for a body would resume it."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized):
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if len(self._waiting) <= MAX_PIPELINED:
            super().resume_reading()


class ClientProtocol(HttpToolsProtocol):
    """One client's connection. A head that is too long or too slow closes it, though never over a running request."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self._in_head = False  # from a message's first byte to its head's end
        self._in_body = False  # from a head's end to its message's; fields are trailers there
        self._rereading = False  # the parser is told again of a head that it has left
        self._moved = False  # this read brought a head's end, a piece of body or a message's end
        self._bare = 0  # bytes of the reads since one did
        self._fault: str | None = None  # of a head that the parser takes
        self._over = False  # nothing that comes now is read as HTTP
        self._refusal: tuple[int, str] | None = None  # to be told once what came before has been answered
        self._timer: asyncio.TimerHandle | None = None  # for a head, or for the end of a closed connection
        self._served: RequestResponseCycle | None = None  # the cycle that runs; `cycle` may be one that waits behind it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._set_timer(HEAD_S, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._over:
            return
        self._moved = False
        try:
            self._feed(memoryview(data))
        except httptools.HttpParserError:
            self._end(400, self._fault or "this is no valid HTTP request")
            return
        self._bare = 0 if self._moved else self._bare + len(data)
        if self._bare > MAX_HEAD:
            what = "what follows its body has" if self._in_body else "the request line and headers have"
            self._end(400 if self._in_body else 431, f"{what} more than {MAX_HEAD} bytes")
        else:
            self._await_head()

    def on_message_begin(self) -> None:
        if self._rereading:
            return
        super().on_message_begin()
        self._in_head = True
        self.scope[HANG_UP] = self.transport.abort  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._rereading:
            return
        self._check_host()
        super().on_headers_complete()
        self._in_head, self._in_body, self._moved = False, True, True
        if not self.transport.is_closing():
            self._stop_timer()
        if self.pipeline:
            self.flow.resume_reading()  # or the client's leaving would not be seen

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved = True
        if not self._cut_short():
            super().on_message_complete()
            self._in_body = False

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            self._set_timer(FLUSH_S, self.transport.abort)
        if self._refusal is not None and not self.pipeline:
            self._refuse(*self._refusal)
        super().on_response_complete()
        if self._in_head or self._in_body:
            self._await_head()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return  # its client left while it waited
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: memoryview) -> None:
        """Read on where the parser stops for the sake of another protocol: nobody has to follow an `Upgrade`."""
        while len(data):
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                data = data[stop.args[0] :]
                if self._in_body:
                    self._reread()

    def _check_host(self) -> None:
        """RFC 9112, 3.2: one Host, which HTTP/1.0 may leave out. Raises HttpParserError."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._fault = f"a request has one Host header; this one has {hosts}"
            raise httptools.HttpParserError(self._fault)

    def _cut_short(self) -> bool:
        """The parser takes a request that asks for another protocol for one without a body; this one has one."""
        return self.parser.should_upgrade() and any(name in _FRAMING for name, _ in self.headers)

    def _reread(self) -> None:
        """A parser that reads the body after the head which asked for another protocol."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        fields = [name + b": " + value for name, value in self.headers if name in _FRAMING]
        self._rereading = True
        try:
            self.parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *fields, b"", b""]))
        finally:
            self._rereading = False

    def _idle(self) -> bool:
        """Every request that has come has its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        """Something has come that is no request yet, and what ends its wait is a head's end alone."""
        if self._idle() and self._timer is None and not self.transport.is_closing():
            self._set_timer(HEAD_S, self._close)

    def _end(self, status: int, message: str) -> None:
        """What comes cannot be read: answer what can be answered, in its turn, and close."""
        self._over = True
        if self._idle() and self._in_body:
            self._close()  # it has its answer
        elif self._idle():
            self._refuse(status, message)
        elif self._in_body:
            self.cycle.scope[MALFORMED] = message  # type: ignore[literal-required]
            self.cycle.more_body = self.cycle.keep_alive = False
            self.cycle.message_event.set()
        else:
            self._refusal = status, message

    def _set_timer(self, after_s: float, call: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(after_s, call)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        """Close, and do not wait for ever until what was sent has been read."""
        self.transport.close()
        self._set_timer(FLUSH_S, self.transport.abort)

    def _refuse(self, status: int, message: str) -> None:
        """An error object; then close."""
        if not self.transport.is_closing():
            line = Line(*request_ids(None), "", self.loop.time())
            body = error_body(RequestError(Reason.INVALID_REQUEST, message), line.request_id)
            head = (
                f"HTTP/1.1 {status} {_WORDS[status]}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"x-headrace-reason: {Reason.INVALID_REQUEST.value}\r\nx-request-id: {line.request_id}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            line.refused(Reason.INVALID_REQUEST.value, status, line.began)
        self._close()
