"""Clients that speak HTTP badly, slowly or in ways few use: raw bytes against a real gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from headrace.gateway import front
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import FakeGateway, eventually, make_world, serving, set_engines

CHAT = b"/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def request(data: bytes, *headers: bytes, path: bytes = CHAT, method: bytes = b"POST", last: bool = True) -> bytes:
    """A request with a key; `last` asks for the connection to be closed."""
    lines = [method + b" " + path + b" HTTP/1.1", b"host: x", b"authorization: Bearer key", *headers]
    lines += [b"connection: close"] if last else []
    return b"\r\n".join([*lines, b"content-length: %d" % len(data), b"", data])


def head(*headers: bytes, key: bytes = b"key") -> bytes:
    """The head of a chat whose body is still to come."""
    return b"\r\n".join(
        [b"POST " + CHAT + b" HTTP/1.1", b"host: x", b"authorization: Bearer " + key, *headers, b"", b""]
    )


async def known(gateway: FakeGateway) -> None:
    async def reported() -> bool:
        return any(engine.state for engine in (await gateway.model()).engines)

    await eventually(reported)


async def until_closed(gateway: FakeGateway, data: bytes, within_s: float = 5.0) -> bytes:
    """All that the gateway sends before it closes. Raises TimeoutError if it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.service.port)
    received = b""
    try:
        async with asyncio.timeout(within_s):
            try:
                writer.write(data)
                while piece := await reader.read(65536):
                    received += piece
            except ConnectionError:
                pass  # closed while we still wrote
    finally:
        writer.close()
    return received


def answers(received: bytes) -> list[int]:
    """Statuses of the answers."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


async def run(check: Callable[[FakeGateway, FakeEngine], Any], **settings: Any) -> None:
    world = make_world()
    async with FakeEngine(tokens_per_s=1e6, max_sequences=8) as engine, serving(world, **settings) as gateway:
        set_engines(world, engine)
        await known(gateway)
        await check(gateway, engine)
        await eventually(gateway.idle)


KEY = b"authorization: Bearer key"
CHUNKS = b"".join(b"1;extension=1\r\n%c\r\n" % byte for byte in body()) + b"0\r\ntrailer: x\r\n\r\n"
ODD = {
    "chunked": (head(b"transfer-encoding: chunked", b"connection: close") + CHUNKS, [200]),
    "one after the other": (
        request(body(), last=False) + request(body(stream=True), last=False) + request(body()),
        [200, 200, 200],
    ),
    "a bad one first": (request(b"x", last=False) + request(body()), [400, 200]),
    "an absolute address": (request(body(), path=b"http://elsewhere" + CHAT), [200]),
    "a query": (request(body(), path=CHAT + b"?a=b"), [200]),
    "an unknown expectation": (request(body(), b"expect: 200-maybe"), [200]),
    "HTTP/1.0": (request(body()).replace(b"HTTP/1.1", b"HTTP/1.0"), [200]),
    "compressed": (request(body(), b"content-encoding: gzip"), [400]),
    "two keys": (request(body(), b"authorization: Bearer other"), [400]),
    "two classes": (request(body(), b"x-headrace-class: batch", b"x-headrace-class: interactive"), [400]),
    "a class of no Unicode": (request(body(), b"x-headrace-class: \xff\xfe"), [403]),
    "a deadline of no number": (request(body(), b"x-headrace-deadline-ms: 1e3"), [400]),
    "a deadline of ten digits": (request(body(), b"x-headrace-deadline-ms: 1000000000"), [400]),
    "a path of no Unicode": (request(body(), path=b"/%ff%00"), [404]),
    "HEAD": (request(b"", method=b"HEAD"), [405]),
    "OPTIONS": (request(b"", method=b"OPTIONS"), [405]),
    "an upgrade": (request(body(), b"connection: upgrade", b"upgrade: h2c", last=False) + request(body()), [200, 200]),
    "a key in a trailer": (head(b"transfer-encoding: chunked", key=b"") + CHUNKS.replace(b"trailer: x", KEY), [401]),
    "no chunk": (head(b"transfer-encoding: chunked") + b"zz\r\nabc", [400]),
    "no chunk, behind another": (request(body(), last=False) + head(b"transfer-encoding: chunked") + b"zz", [200, 400]),
    "nothing HTTP behind another": (request(body(), last=False) + b"\0\1\2\r\n", [200, 400]),
    "two lengths": (request(body(), b"content-length: 3"), [400]),
    "a length and chunks": (request(body(), b"transfer-encoding: chunked"), [400]),
    "a negative length": (head(b"content-length: -3"), [400]),
    "not HTTP": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "a head of a megabyte": (head(b"x: " + b"a" * 1_000_000), [431]),
    "an address of a megabyte": (request(body(), path=CHAT + b"?" + b"a" * 1_000_000), [431]),
}


@pytest.mark.parametrize(("data", "statuses"), ODD.values(), ids=ODD.keys())
def test_odd_requests_get_an_answer_and_an_error_object(data: bytes, statuses: list[int]) -> None:
    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        received = await until_closed(gateway, data)
        assert answers(received) == statuses
        if statuses[-1] >= 400 and b"HEAD" not in data:
            error = json.loads(received.rsplit(b"\r\n\r\n", 1)[1])["error"]
            assert error["message"] and error["type"] and error["code"]

    asyncio.run(run(check))


def test_a_body_is_asked_for_only_when_it_is_wanted() -> None:
    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        data = body()
        wanted = await until_closed(gateway, request(data, b"expect: 100-continue"))
        assert answers(wanted) == [100, 200]
        refused = head(b"expect: 100-continue", b"content-length: %d" % len(data), key=b"wrong")
        assert answers(await until_closed(gateway, refused)) == [401], "and closed: the next bytes could be either"

    asyncio.run(run(check))


def test_a_body_that_drips_is_refused_and_its_connection_closed() -> None:
    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        received = await until_closed(gateway, head(b"content-length: 1000") + b"{")
        assert answers(received) == [400] and b"did not arrive" in received

    asyncio.run(run(check, body_s=0.3))


@pytest.mark.parametrize("data", [b"", b"POST /v1/ch", head()[:-2]], ids=["nothing", "a line", "no end"])
def test_a_head_that_does_not_come_closes_the_connection(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "HEAD_S", 0.3)

    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        assert await until_closed(gateway, data) == b""
        again = request(body(), last=False) + b"POST /v1"
        assert answers(await until_closed(gateway, again)) == [200], "a second head must come in time, too"

    asyncio.run(run(check))


def test_a_body_cut_off_by_the_client_leaves_nothing() -> None:
    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        for data in (head(b"content-length: 1000") + b"{", request(body())[:-3]):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.service.port)
            writer.write(data)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        assert answers(await until_closed(gateway, request(body()))) == [200]
        assert len(engine.seen) == 1
        assert sum((await gateway.service_class()).outcomes.values()) == 1, "the others were never whole"

    asyncio.run(run(check))


@pytest.mark.parametrize(
    "data",
    [request(b"", path=b"/" + b"n" * 150, method=b"GET", last=False), request(b"x", last=False)],
    ids=["no-route", "no-chat"],
)
def test_a_client_that_pipelines_and_never_reads_is_hung_up_on(data: bytes) -> None:
    async def check(gateway: FakeGateway, engine: FakeEngine) -> None:
        for listening in gateway.service._clients.servers[0].sockets:  # small buffers are full after few answers
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, ("127.0.0.1", gateway.service.port))
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(20):
                    while True:
                        await loop.sock_sendall(raw, data * 50)

    asyncio.run(run(check, stall_s=0.3))


def test_a_pipelined_request_of_a_client_that_left_is_not_served() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=5.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.service.port)
            long = body(stream=True, max_tokens=500, ignore_eos=True)
            writer.write(request(long, last=False) + request(long))

            async def started() -> bool:
                return bool(engine.seen)

            await eventually(started)
            writer.transport.abort()
            await eventually(gateway.idle, 10)
            assert len(engine.seen) == 1
            assert (await gateway.service_class()).outcomes["cancelled"] == 1

    asyncio.run(main())
