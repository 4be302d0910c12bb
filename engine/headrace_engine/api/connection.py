"""A client's connection: uvicorn's, with bounds on what is no body, and refusals that a program can read."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from http import HTTPStatus

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace_wire.reasons import Reason, RequestError

MAX_HEAD = 64 << 10  # bytes of a request line and its headers, or of trailers, and what one read brings beyond it
MAX_PIPELINED = 8  # requests behind the one that runs; no more is read then
HEAD_S = 30.0  # for a head to be complete
STALL_S = 60.0  # for a client to read so much that more can be written, or what is left after a close
_FRAMING = (b"content-length", b"transfer-encoding")


class _Flow(FlowControl):
    """Reads no further while many requests wait: each answer and each wait for a body would resume it."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized):
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Unless as many as may wait do so."""
        if len(self._waiting) <= MAX_PIPELINED:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """One connection. Nothing closes it over a running request but a broken body of that request itself, or a client
    that reads nothing.
    """

    _bare_bytes = 0  # of the reads since one brought a head's end, a piece of body or a message's end
    _moved = False  # this read did
    _in_head = False  # from a message's first byte to its head's end
    _in_body = False  # from there to the message's end; fields are trailers
    _rereading = False  # the parser is told again of a head that it has left
    _fault: str | None = None  # of a head that the parser takes
    _over = False  # nothing that comes now is read as HTTP
    _refusal: tuple[HTTPStatus, str] | None = None  # to be told once what came before has been answered
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None  # runs while the client leaves unread what it was sent
    _served: RequestResponseCycle | None = None  # the cycle that runs; `cycle` may be one that waits behind it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that connects and says nothing is not kept for ever either."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._head_complete()
        self._stop_stall()
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Raises nothing: what is no HTTP is answered with 400."""
        self._unset_keepalive_if_required()
        if self._over or self.transport.is_closing():
            return
        self._moved = False
        try:
            self._feed(memoryview(data))
        except httptools.HttpParserError:
            self._end(HTTPStatus.BAD_REQUEST, self._fault or "this is not a valid HTTP/1.1 request")
            return
        self._bare_bytes = 0 if self._moved else self._bare_bytes + len(data)
        if self._bare_bytes > MAX_HEAD:
            what = "what follows the body" if self._in_body else "the head"
            self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{what} is larger than {MAX_HEAD} bytes")
        else:
            self._expect_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        if not self._rereading:
            super().on_message_begin()
            self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are dropped: what counts comes before the body."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        if not self._rereading:
            self._check_host()
            self._head_complete()
            super().on_headers_complete()
            self._in_head, self._in_body, self._moved = False, True, True
            if self.pipeline:
                self.flow.resume_reading()  # or the client's leaving would not be seen

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A body is complete, unless the parser left it for the sake of another protocol."""
        self._moved = True
        if not (self.parser.should_upgrade() and any(name in _FRAMING for name, _ in self.headers)):
            super().on_message_complete()
            self._in_body = False

    def on_response_complete(self) -> None:
        """The next request's turn, or that of what is no request."""
        if self.transport.is_closing():
            self._await_reader()
        if self._refusal is not None and not self.pipeline and not self.transport.is_closing():
            self._refuse(*self._refusal)
        super().on_response_complete()
        if self._in_head or self._in_body:
            self._expect_head()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_stall()

    def timeout_keep_alive_handler(self) -> None:
        """No request came for long."""
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
        return self.cycle is None or bool(self.cycle.response_complete)

    def _end(self, status: HTTPStatus, message: str) -> None:
        """What comes cannot be read: answer what can be answered, in its turn, and close."""
        self._over = True
        if self._idle() and self._in_body:
            self._close()  # it has its answer
        elif self._idle() or (self._in_body and not self.pipeline and not self.cycle.response_started):
            self._refuse(status, message)
        elif not self._in_body:
            self._refusal = status, message
        elif self.pipeline:
            self.pipeline.popleft()  # the one whose body it was
            self._refusal = status, message
        else:
            self.cycle.keep_alive = False

    def _expect_head(self) -> None:
        """Something may come that is no request yet; what ends the wait is a head's end alone."""
        if self._idle() and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_S, self._head_too_slow)

    def _head_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        if self._in_head and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole head came within {HEAD_S:g} s")
        self._close()

    def _await_reader(self) -> None:
        """Give the client a while to read; then end the connection, and with it what writes there."""
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_S, self.transport.abort)

    def _stop_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close(self) -> None:
        """Close, and do not wait for ever until what was sent has been read."""
        self.transport.close()
        self._await_reader()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._head_complete()
        body = msgspec.json.encode(RequestError(Reason.INVALID_REQUEST, message).body())
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()
