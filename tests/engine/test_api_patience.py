"""A client that asks without end or reads nothing: what the engine keeps for it is bounded, on a clock that leaps."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from headrace.testing.wire import SLOW_S, Talk, talking
from headrace_engine.api.connection import MAX_PIPELINED, STALL_S, Connection


def get(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"host: x", *headers, b"", b""])


def test_no_more_is_read_while_many_requests_wait() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/slow"))
        for number in range(MAX_PIPELINED + 1):
            await talk.say(get(b"/nothing"))
            assert talk.wire.reading is (number < MAX_PIPELINED), number
        await asyncio.sleep(SLOW_S + 1)
        assert talk.statuses == [200] * (MAX_PIPELINED + 2), "each is answered, in its turn"
        assert talk.wire.reading, "and reading goes on"
        await talk.say(get(b"/nothing"))
        assert talk.statuses == [200] * (MAX_PIPELINED + 3)

    talking(Connection, script)


def test_of_many_requests_in_one_read_each_is_answered() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/nothing") * 500)
        for _ in range(500):
            await asyncio.sleep(0)
        assert talk.statuses == [200] * 500 and talk.wire.reading

    talking(Connection, script)


def test_what_waits_behind_a_client_that_left_is_not_begun() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/slow") + get(b"/nothing") * 3)
        talk.wire.close()
        talk.protocol.connection_lost(None)
        await asyncio.sleep(SLOW_S + 1)
        assert [scope["path"] for scope in talk.seen] == ["/slow"]

    talking(Connection, script)


@pytest.mark.parametrize("late", [False, True], ids=["nothing", "too-late"])
def test_a_client_that_reads_nothing_loses_its_connection(late: bool) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/slow"))
        began = asyncio.get_running_loop().time()
        talk.protocol.pause_writing()
        if late:  # it reads, and then no more
            await asyncio.sleep(STALL_S - 1)
            talk.protocol.resume_writing()
            began = asyncio.get_running_loop().time()
            talk.protocol.pause_writing()
        await asyncio.sleep(STALL_S - 0.1)
        assert talk.wire.aborted_at is None
        await asyncio.sleep(0.2)
        assert talk.wire.aborted_at == pytest.approx(began + STALL_S)

    talking(Connection, script)


def test_a_client_that_reads_in_time_keeps_its_connection() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/slow"))
        for _ in range(2):
            talk.protocol.pause_writing()
            await asyncio.sleep(STALL_S * 0.8)
            talk.protocol.resume_writing()
        await asyncio.sleep(6)
        assert talk.statuses == [200] and talk.wire.aborted_at is None

    talking(Connection, script)


@pytest.mark.parametrize(
    "last", [get(b"/nothing", b"connection: close"), b"\0\1\2\r\n"], ids=["an-answer", "a-refusal"]
)
def test_a_closed_connection_does_not_wait_for_ever_until_it_is_read(last: bytes) -> None:
    async def script(talk: Talk) -> None:
        began = asyncio.get_running_loop().time()
        await talk.say(last)
        assert talk.wire.is_closing() and talk.wire.aborted_at is None
        talk.protocol.resume_writing()  # a part of it was read
        await asyncio.sleep(STALL_S + 1)
        assert talk.wire.aborted_at == pytest.approx(began + STALL_S)

    talking(Connection, script)


def test_of_a_real_socket_an_unread_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_engine.api.connection.STALL_S", 0.3)
    ended = asyncio.Event()

    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not ended.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent += 1

    class Told(Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            ended.set()
            super().connection_lost(exc)

    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=Told, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        client = socket.create_connection(listening.getsockname())
        client.sendall(get(b"/"))
        async with asyncio.timeout(10):
            await ended.wait()
        assert sent > 1, "it has been answered, and then it read nothing"
        client.close()
        server.should_exit = True
        await serving

    asyncio.run(main())
