"""Streams at their edges: comments while waiting, back-pressure, slow readers, connection reuse, drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.gateway.world import Address
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import NAMESPACE, FakeGateway, eventually, make_world, serving, set_engines

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello there"}
AUTH = {"authorization": "Bearer key"}


async def known(gateway: FakeGateway) -> None:
    async def reported() -> bool:
        return any(engine.state for engine in (await gateway.model()).engines)

    await eventually(reported)


def raw_request(**body: Any) -> bytes:
    data = json.dumps({"model": "m", "messages": [USER], **body}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer key\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def open_to(gateway: FakeGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", gateway.service.port)


def test_a_stream_that_waits_gets_comments_then_its_answer() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world, hold_s=0.1, beat_s=0.05) as gateway:
            reader, writer = await open_to(gateway)
            writer.write(raw_request(stream=True))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert b" 200 " in head and b"text/event-stream" in head
            for _ in range(3):
                assert await asyncio.wait_for(reader.readuntil(b": waiting\n\n\r\n"), 5)
            set_engines(world, engine)
            rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            assert b'"content":"h"' in rest and b"data: [DONE]" in rest
            after = rest[rest.index(b'"content":"h"') :]
            assert b": waiting" not in after
            writer.close()

    asyncio.run(main())


def test_a_stream_that_was_promised_and_is_shed_gets_an_error_event() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world, hold_s=0.05, beat_s=0.05, cold_wait_s=0.3) as gateway:
            answer = await gateway.http.post(
                gateway.url + CHAT, json={"model": "m", "messages": [USER], "stream": True}, headers=AUTH
            )
            assert answer.status_code == 200
            assert "no_capacity" in answer.text and "[DONE]" not in answer.text
            assert (await gateway.service_class()).outcomes["shed"] == 1

    asyncio.run(main())


def test_headers_wait_for_an_answer_that_does_not_stream() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world, hold_s=0.05, beat_s=0.05, cold_wait_s=0.3) as gateway:
            answer = await gateway.http.post(gateway.url + CHAT, json={"model": "m", "messages": [USER]}, headers=AUTH)
            assert answer.status_code == 503

    asyncio.run(main())


def test_connections_to_engines_are_kept() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1e6) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            before = gateway.service.pool.opened
            for i in range(30):
                body = {"model": "m", "messages": [USER], "stream": i % 2 == 0}
                assert (await gateway.http.post(gateway.url + CHAT, json=body, headers=AUTH)).status_code == 200
            assert gateway.service.pool.opened - before <= 2, "one for requests, one for reports"

    asyncio.run(main())


EVENT = {"choices": [{"index": 0, "delta": {"content": "x" * 16_000}, "finish_reason": None}]}
FLOOD = b"data: " + json.dumps(EVENT).encode() + b"\n\n"
TOTAL = 4000  # events, 64 MB


class Flood:
    """An engine that writes as fast as it is read."""

    def __init__(self) -> None:
        self.sent = 0  # events
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"/headrace/v1/state" in head:
                    body = json.dumps({"model": {"name": "m", "max_sequences": 4}, "total": 10, "free": 10}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                for _ in range(TOTAL):
                    writer.write(b"%x\r\n%s\r\n" % (len(FLOOD), FLOOD))
                    await writer.drain()
                    self.sent += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.set()


@asynccontextmanager
async def flooding(**settings: float) -> AsyncIterator[tuple[Flood, FakeGateway]]:
    flood, world = Flood(), make_world()
    server = await asyncio.start_server(flood.serve, "127.0.0.1", 0)
    async with serving(world, **settings) as gateway:
        port = server.sockets[0].getsockname()[1]
        world.endpoints = {(NAMESPACE, "m"): (Address("flood", "127.0.0.1", port),)}
        world.notify()
        await known(gateway)
        yield flood, gateway
    server.close()


async def stuck(flood: Flood) -> None:
    """Until the engine can write no more."""
    before = -1
    async with asyncio.timeout(20):
        while flood.sent != before or not flood.sent:
            before = flood.sent
            await asyncio.sleep(0.3)


def test_a_slow_reader_holds_the_engine_back() -> None:
    async def main() -> None:
        async with flooding() as (flood, gateway):
            _, writer = await open_to(gateway)
            writer.write(raw_request(stream=True))
            await stuck(flood)
            assert flood.sent < TOTAL / 2, "what is not read stays in the engine, kernel buffers apart"
            writer.transport.abort()
            await asyncio.wait_for(flood.closed.wait(), 10)  # promised: 1 s
            await eventually(gateway.idle)
            assert (await gateway.service_class()).outcomes["cancelled"] == 1

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_dropped() -> None:
    async def main() -> None:
        async with flooding(stall_s=0.5) as (flood, gateway):
            _, writer = await open_to(gateway)
            writer.write(raw_request(stream=True))
            await asyncio.wait_for(flood.closed.wait(), 20)
            await eventually(gateway.idle)
            assert (await gateway.service_class()).outcomes["cancelled"] == 1
            writer.transport.abort()

    asyncio.run(main())


def test_an_answer_too_long_to_join_is_an_error() -> None:
    async def main() -> None:
        async with flooding(max_answer=1_000_000) as (flood, gateway):
            answer = await gateway.http.post(gateway.url + CHAT, json={"model": "m", "messages": [USER]}, headers=AUTH)
            assert answer.status_code == 502 and "1000000 bytes" in answer.text
            await asyncio.wait_for(flood.closed.wait(), 10)  # promised: 1 s

    asyncio.run(main())


@pytest.mark.parametrize(("drain_s", "complete"), [(10.0, True), (1.0, False)], ids=["long enough", "too short"])
def test_draining_lets_requests_end(drain_s: float, complete: bool) -> None:
    async def main() -> None:
        world = make_world()
        rate = 20.0 if complete else 4.0
        async with FakeEngine(tokens_per_s=rate) as engine, serving(world, drain_s=drain_s, linger_s=0.2) as gateway:
            set_engines(world, engine)
            await known(gateway)
            reader, writer = await open_to(gateway)
            writer.write(raw_request(stream=True))
            await asyncio.wait_for(reader.readuntil(b'"content":"h"'), 5)
            drain = asyncio.create_task(gateway.service.drain())
            await asyncio.sleep(0)
            assert (await gateway.http.get(gateway.state_url + "/readyz")).status_code == 503
            rest = await asyncio.wait_for(reader.read(), 20)
            assert (b"[DONE]" in rest) is complete
            assert (b'"draining"' in rest) is not complete
            await asyncio.wait_for(drain, 5)
            assert gateway.service.reporter.state().models[0].classes[0].outcomes["good"] == int(complete)
            writer.close()

    asyncio.run(main())
