"""A client's connection: uvicorn's, with a bound on the head of a request, and refusals that a program can read."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace_wire.reasons import Reason, RequestError

MAX_HEAD = 64 << 10  # bytes of a request line and its headers, and what one read brings beyond it
HEAD_S = 30.0  # for a head to be complete


class Connection(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0  # of a head that is not complete yet
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that connects and says nothing is not kept for ever either."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._head_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Raises nothing: what is no HTTP is answered with 400."""
        awaited = self._head_timer
        super().data_received(data)
        if awaited is None or self._head_timer is not awaited:
            return  # what it brought of another head is bounded by one read
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head is larger than {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """A head begins; a connection's first one has been expected since it was made."""
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._head_complete()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """The error object instead of plain text."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP/1.1 request")

    def _expect_head(self) -> None:
        self._head_complete()
        self._head_timer = self.loop.call_later(HEAD_S, self._head_too_slow)

    def _head_complete(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        if self._head_bytes and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole head came within {HEAD_S:g} s")
        self.transport.close()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._head_complete()
        body = msgspec.json.encode(RequestError(Reason.INVALID_REQUEST, message).body())
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
