"""A small HTTP/1.1 server on loopback whose handlers own the connection, so that they can break it on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

_WATCH_S = 0.01  # how soon a client's leaving is seen
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}


class _Malformed(ValueError):
    """The client did not speak HTTP/1.1."""


@dataclass(frozen=True)
class Request:
    """A whole request."""

    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    body: bytes


class Responder:
    """Writes one response. A handler that returns without writing a head closes the connection without a byte."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writer = writer
        self.started = False
        self.ended = False

    async def whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A response of known length."""
        self.started = self.ended = True
        extra = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
        self._writer.write(_head(status, extra) + body)
        await self._writer.drain()

    async def bare(self, status: int, headers: dict[str, str]) -> None:
        """A head without a body: the answer to HEAD."""
        self.started = self.ended = True
        self._writer.write(_head(status, headers))
        await self._writer.drain()

    async def json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """A JSON response."""
        await self.whole(status, json.dumps(value).encode(), headers)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        """Begins a chunked response."""
        self.started = True
        self._writer.write(_head(status, {**headers, "transfer-encoding": "chunked"}))
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        """One chunk; empty data is nothing."""
        if data:
            self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await self._writer.drain()

    async def end(self) -> None:
        """Ends a chunked response properly."""
        self.ended = True
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Breaks the connection at once."""
        self._writer.transport.abort()


Handler = Callable[[Request, Responder], Awaitable[None]]


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readline()).split(b";")[0].strip() or b"0", 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass
    return bytes(body)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3:
        raise _Malformed(first)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(parts[0], parts[1], headers, body)


async def _left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof() and not writer.transport.is_closing():  # noqa: ASYNC110  streams give no event for it
        await asyncio.sleep(_WATCH_S)


class LoopbackServer:
    """Serves `handler` on loopback. A handler is cancelled when its client leaves."""

    def __init__(self, handler: Handler, port: int = 0):
        self._handler = handler
        self._wanted = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        """Binds and listens."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._wanted, limit=1 << 17)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops listening and breaks every connection, as a killed process would."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the client left, or did not speak HTTP: nobody to answer
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its response; False when the connection must close."""
        request = await _read(reader)
        responder = Responder(writer)
        work = asyncio.ensure_future(self._handler(request, responder))
        watch = asyncio.ensure_future(_left(reader, writer))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, watch):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error
        keep = request.headers.get("connection", "").lower() != "close"
        return keep and responder.ended
