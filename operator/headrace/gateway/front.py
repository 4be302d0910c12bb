"""A client's connection: uvicorn's HTTP/1.1 with bounds on heads, and error objects for what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.gateway.call import request_ids
from headrace.gateway.client import error_body
from headrace.gateway.journal import Line
from headrace_wire.reasons import Reason, RequestError

MAX_HEAD = 64 * 1024  # bytes of request line and headers, up to one read more
MAX_PIPELINED = 8  # requests behind the one that is served; no more is read then
HEAD_S = 30.0  # for a head to arrive whole, and for the first byte of a new connection


class ClientProtocol(HttpToolsProtocol):
    """One client's connection. A head that is too long or too slow closes it."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._served: RequestResponseCycle | None = None  # the cycle that runs; `cycle` may be one that waits behind it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True
            served.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(400, "this is no valid HTTP request")
            return
        except httptools.HttpParserUpgrade:
            return  # the application has refused it
        if self._in_head:
            self._watch_head(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()  # or the client's leaving would not be seen

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.disconnected or self.transport.is_closing():
            return  # its client left while it waited
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_head(self, size: int) -> None:
        """A part of a head has come, and not its end."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD:
            self._refuse(431, f"the request line and headers have more than {MAX_HEAD} bytes")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        """An error object, unless an answer is on its way; then close."""
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            line = Line(*request_ids(None), "", self.loop.time())
            body = error_body(RequestError(Reason.INVALID_REQUEST, message), line.request_id)
            words = "Bad Request" if status == 400 else "Request Header Fields Too Large"
            head = (
                f"HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"x-headrace-reason: {Reason.INVALID_REQUEST.value}\r\nx-request-id: {line.request_id}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            line.refused(Reason.INVALID_REQUEST.value, status, line.began)
        self.transport.close()
