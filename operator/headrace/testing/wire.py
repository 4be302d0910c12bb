"""A server's side of one connection without a socket: bytes in, bytes out, on a clock that leaps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from headrace.testing.leaping import LeapingLoop

SLOW_S = 100.0  # that `/slow` takes


class Wire(asyncio.Transport):
    """What a connection writes, and when it ended (seconds of the loop)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.written = b""
        self.reading = True
        self.closed_at: float | None = None
        self.aborted_at: float | None = None

    def write(self, data: Any) -> None:
        """Noted, unless it comes too late."""
        if self.closed_at is None:
            self.written += bytes(data)

    def close(self) -> None:
        """The first one counts."""
        if self.closed_at is None:
            self.closed_at = self._loop.time()

    def abort(self) -> None:
        """It ends whatever is unread."""
        self.close()
        self.aborted_at = self._loop.time()

    def is_closing(self) -> bool:
        """Closed or aborted."""
        return self.closed_at is not None

    def pause_reading(self) -> None:
        """Noted; what is given is read all the same."""
        self.reading = False

    def resume_reading(self) -> None:
        """Noted."""
        self.reading = True


class Talk:
    """A connection and an application that answers every path with the size of the body."""

    def __init__(self, protocol: Callable[..., Any]):
        loop = asyncio.get_running_loop()
        self.wire = Wire(loop)
        self.seen: list[dict[str, Any]] = []  # scopes
        config = uvicorn.Config(
            self._app, interface="asgi3", proxy_headers=False, ws="none", lifespan="off", log_config=None
        )
        self.server = ServerState()
        self.protocol = protocol(config, self.server, {}, loop)
        self.protocol.connection_made(self.wire)

    async def say(self, data: bytes) -> None:
        """One read; returns when everything that needs no time is done."""
        self.protocol.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer."""
        _, *parts = re.split(rb"HTTP/1.1 (?=\d{3} )", self.wire.written)
        return [(int(part[:3]), part.partition(b"\r\n\r\n")[2]) for part in parts]

    @property
    def statuses(self) -> list[int]:
        """Of the answers."""
        return [status for status, _ in self.answers]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        size, more = 0, not scope["path"].startswith("/nothing")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == "/slow":
            await asyncio.sleep(SLOW_S)
        body = b"%d" % size
        head = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


def talking(protocol: Callable[..., Any], script: Callable[[Talk], Awaitable[None]]) -> None:
    """Run a script on a fresh connection."""

    async def main() -> None:
        talk = Talk(protocol)
        await script(talk)
        talk.protocol.connection_lost(None)
        await asyncio.gather(*talk.server.tasks)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(main())
