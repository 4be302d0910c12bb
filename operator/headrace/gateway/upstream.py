"""Connections to engines: a small HTTP/1.1 client on httptools that is cheap, bounded and honest about failures.

One exchange at a time on a connection. A connection goes back to the pool only after a complete answer; anything else
closes it, and closing it is how a request is cancelled on the engine.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import httptools

HIGH_WATER = 64 * 1024  # bytes buffered for a slow reader before the socket is no longer read
LOW_WATER = 16 * 1024
MAX_HEAD = 64 * 1024  # bytes of status line and headers
MAX_IDLE = 64  # kept connections per engine
SPILL = 64 * 1024  # bytes that may still follow an answer that was given back early
LINGER_S = 1.0  # seconds for the end of an answer that was given back early


class Failure(str, Enum):
    """How an exchange failed."""

    CONNECT = "connect"  # no connection: the engine has seen nothing
    BROKEN = "broken"  # closed or malformed before the answer was complete
    TIMEOUT = "timeout"  # nothing came for too long
    TOO_LARGE = "too_large"


class UpstreamError(Exception):
    """An exchange with an engine failed; `untouched` says that no byte of an answer had come."""

    def __init__(self, failure: Failure, message: str, *, untouched: bool):
        super().__init__(message)
        self.failure = failure
        self.untouched = untouched


@dataclass(frozen=True)
class Head:
    """Status and headers (names in lower case) of an answer."""

    status: int
    headers: dict[bytes, bytes]


class Connection(asyncio.Protocol):
    """One connection to an engine. `send` starts an exchange; then `head`, then `read` until b""; then `release`."""

    def __init__(self, pool: Pool, peer: tuple[str, int]):
        self._pool = pool
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._chunks: deque[bytes] = deque()
        self._paused = False
        self._spill = 0
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head: Head | None = None
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._buffered = 0  # bytes
        self._received = 0  # bytes of this exchange
        self._complete = False
        self._reusable = False
        self._released = False
        self._error: UpstreamError | None = None
        self._chunks.clear()

    # what the pool and the relay call

    @property
    def usable(self) -> bool:
        """Open, and no exchange is running."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> None:
        """Start an exchange with a whole request."""
        self._reset()
        if self._transport is None or self._transport.is_closing():
            self._error = UpstreamError(Failure.BROKEN, "the connection was closed", untouched=True)
            return
        self._transport.write(request)

    async def head(self, wait_s: float) -> Head:
        """Wait for status and headers, `wait_s` seconds at most (0: for ever). Raises UpstreamError."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait(wait_s)
        return self._head

    async def read(self, wait_s: float) -> bytes:
        """The bytes of the body that have come, at least one; b"" after the last. Raises UpstreamError.

        Nothing for `wait_s` seconds (0: no limit) is an error; an answer that comes slowly is not.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._complete:
                return b""
            await self._wait(wait_s)
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def read_all(self, limit: int, wait_s: float) -> bytes:
        """The whole body, at most `limit` bytes. Raises UpstreamError."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read(wait_s):
            size += len(data)
            if size > limit:
                raise UpstreamError(Failure.TOO_LARGE, f"the answer has more than {limit} bytes", untouched=False)
            parts.append(data)
        return b"".join(parts)

    def release(self) -> None:
        """The caller has all it wants of a good answer: keep the connection once the answer's end has come."""
        self._released = True
        if self._complete:
            self._give_back()
        elif self._error is not None:
            self.abort()
        else:
            self._resume()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close at once; the engine takes this as a cancel."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._complete or self._error is not None:  # nothing is expected: the peer is out of step
            self.abort()
            return
        self._received += len(data)
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Failure.BROKEN, f"malformed answer: {error}")
        if self._head is None and self._head_bytes > MAX_HEAD:
            self._fail(Failure.TOO_LARGE, f"more than {MAX_HEAD} bytes of headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self._peer, self)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._complete or self._error is not None:
            return
        until_close = (
            self._head is not None
            and b"content-length" not in self._head.headers
            and b"transfer-encoding" not in self._head.headers
        )
        if until_close and exc is None:
            self._complete = True
            self._wake()
        else:
            self._fail(Failure.BROKEN, "the engine closed the connection")

    # httptools callbacks; should_keep_alive() is right only inside them

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # trailers tell nothing
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._head = Head(status, self._headers)
            self._wake()
        self._headers = {}

    def on_body(self, body: bytes) -> None:
        if self._released:
            self._spill += len(body)
            if self._spill > SPILL:
                self.abort()
            return
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._head is None:  # an informational answer
            return
        self._complete = True
        self._reusable = bool(self._parser.should_keep_alive())
        self._wake()
        if self._released:
            self._give_back()

    # inside

    async def _wait(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(wait_s, self._expire, wait_s) if wait_s else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _expire(self, wait_s: float) -> None:
        self._fail(Failure.TIMEOUT, f"the engine sent nothing for {wait_s:g} s")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: Failure, message: str) -> None:
        if self._error is None:
            self._error = UpstreamError(failure, message, untouched=self._received == 0)
        self._wake()
        if self._transport is not None:
            self._transport.abort()

    def _resume(self) -> None:
        self._chunks.clear()
        self._spill = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _give_back(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._resume()
        if self._reusable and self.usable:
            self._pool.keep(self._peer, self)
        else:
            self.abort()


class Pool:
    """Idle connections per engine, newest first, and the making of new ones."""

    def __init__(self, connect_s: float = 2.0):
        self._connect_s = connect_s  # seconds
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self.opened = 0  # connections ever made

    async def start(self, host: str, port: int, make: Callable[[], bytes], wait_s: float) -> tuple[Connection, Head]:
        """Send a whole request and wait for the head of its answer, `wait_s` seconds at most (0: for ever).

        A kept connection that the engine closed meanwhile, without a byte of answer, is replaced by a new one, once;
        `make` is called each time.
        Raises UpstreamError; closes the connection if cancelled.
        """
        idle = self._idle.get((host, port))
        while idle:
            kept = idle.pop()
            if not kept.usable:
                continue
            try:
                return kept, await _exchange(kept, make(), wait_s)
            except UpstreamError as error:
                if not error.untouched or error.failure is Failure.TIMEOUT:
                    raise
                break
        fresh = await self._connect(host, port)
        return fresh, await _exchange(fresh, make(), wait_s)

    async def fetch(self, host: str, port: int, path: str, limit: int, wait_s: float = 10.0) -> tuple[int, bytes]:
        """GET a path: its status and its body of at most `limit` bytes, with `wait_s` seconds for each piece.

        Raises UpstreamError.
        """
        netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        request = f"GET {path} HTTP/1.1\r\nhost: {netloc}\r\naccept: application/json\r\n\r\n".encode()
        connection, head = await self.start(host, port, lambda: request, wait_s)
        try:
            data = await connection.read_all(limit, wait_s)
        except BaseException:
            connection.abort()
            raise
        connection.release()
        return head.status, data

    async def _connect(self, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(lambda: Connection(self, (host, port)), host, port)
        except (OSError, TimeoutError) as error:
            words = str(error) or f"no connection within {self._connect_s:g} s"
            raise UpstreamError(Failure.CONNECT, words, untouched=True) from error
        self.opened += 1
        return connection

    def keep(self, peer: tuple[str, int], connection: Connection) -> None:
        """Take a connection back."""
        idle = self._idle.setdefault(peer, [])
        if len(idle) >= MAX_IDLE:
            connection.abort()
        else:
            idle.append(connection)

    def forget(self, peer: tuple[str, int], connection: Connection) -> None:
        """The connection has closed."""
        idle = self._idle.get(peer)
        if idle is not None and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[peer]

    def drop(self, host: str, port: int) -> None:
        """Close the idle connections to an engine that is gone."""
        for connection in self._idle.pop((host, port), []):
            connection.abort()

    def close(self) -> None:
        """Close every idle connection."""
        for host, port in list(self._idle):
            self.drop(host, port)

    def idle(self) -> int:
        """Number of kept connections."""
        return sum(map(len, self._idle.values()))


async def _exchange(connection: Connection, request: bytes, wait_s: float) -> Head:
    connection.send(request)
    try:
        return await connection.head(wait_s)
    except BaseException:
        connection.abort()
        raise
