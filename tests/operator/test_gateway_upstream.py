"""The pool against scripted engines: reuse, dead kept connections, every way an answer can end, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.gateway.upstream import HIGH_WATER, Failure, Pool, UpstreamError

WAIT = 5.0
REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[int]:
    """A server whose every connection runs the script; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side closed first
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def ask(pool: Pool, port: int) -> tuple[int, bytes]:
    connection, head = await pool.start("127.0.0.1", port, lambda: REQUEST, WAIT)
    body = await connection.read_all(1 << 20, WAIT)
    connection.release()
    return head.status, body


def answering(*answers: bytes) -> Script:
    """Answers each request of a connection in turn, then closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    return script


COMPLETE = {
    "length": OK,
    "chunked": CHUNKED,
    "until close": b"HTTP/1.1 200 OK\r\n\r\nok",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
}


@pytest.mark.parametrize("answer", COMPLETE.values(), ids=COMPLETE.keys())
def test_a_whole_answer_is_read(answer: bytes) -> None:
    async def main() -> None:
        async with peer(answering(answer)) as port:
            assert await ask(Pool(), port) == (200, b"ok")

    asyncio.run(main())


@pytest.mark.parametrize("answer", [OK, CHUNKED], ids=["length", "chunked"])
def test_connections_are_kept(answer: bytes) -> None:
    async def main() -> None:
        pool = Pool()
        async with peer(answering(*[answer] * 20)) as port:
            for _ in range(20):
                assert await ask(pool, port) == (200, b"ok")
            assert (pool.opened, pool.idle()) == (1, 1)
            pool.close()

    asyncio.run(main())


def test_a_connection_that_says_close_is_not_kept() -> None:
    async def main() -> None:
        pool = Pool()
        async with peer(answering(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))) as port:
            await ask(pool, port)
            await ask(pool, port)
            assert (pool.opened, pool.idle()) == (2, 0)

    asyncio.run(main())


def test_a_kept_connection_closed_by_the_engine_costs_nothing() -> None:
    async def main() -> None:
        pool = Pool()
        async with peer(answering(OK)) as port:  # closes after each answer, without a word before
            for _ in range(50):
                assert await ask(pool, port) == (200, b"ok")

    asyncio.run(main())


BROKEN = {
    "closed without a byte": (b"", True),
    "closed in the head": (b"HTTP/1.1 200 O", False),
    "closed in the body": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", False),
    "closed in a chunk": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nok", False),
    "not HTTP": (b"hello\r\n\r\n", False),
}


@pytest.mark.parametrize(("answer", "untouched"), BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_breaks_off_is_an_error(answer: bytes, untouched: bool) -> None:
    async def main() -> None:
        async with peer(answering(answer)) as port:
            with pytest.raises(UpstreamError) as caught:
                await ask(Pool(), port)
        assert (caught.value.failure, caught.value.untouched) == (Failure.BROKEN, untouched)

    asyncio.run(main())


def test_nobody_listening_is_a_failure_to_connect() -> None:
    async def main() -> None:
        async with peer(answering()) as port:
            pass
        with pytest.raises(UpstreamError) as caught:
            await ask(Pool(), port)
        assert caught.value.failure is Failure.CONNECT

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"], ids=["no head", "no end"])
def test_a_silent_engine_is_a_timeout(sent: bytes) -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            try:
                await reader.read()
            finally:
                left.set()

        async with peer(script) as port:
            with pytest.raises(UpstreamError) as caught:
                connection, _ = await Pool().start("127.0.0.1", port, lambda: REQUEST, 0.05)
                await connection.read_all(100, 0.05)
            assert caught.value.failure is Failure.TIMEOUT
            await asyncio.wait_for(left.wait(), WAIT)

    asyncio.run(main())


def test_aborting_closes_the_engines_side() -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                await reader.read()
            finally:
                left.set()

        async with peer(script) as port:
            connection, _ = await Pool().start("127.0.0.1", port, lambda: REQUEST, WAIT)
            connection.abort()
            await asyncio.wait_for(left.wait(), 10)

    asyncio.run(main())


def test_an_unread_answer_is_not_buffered() -> None:
    async def main() -> None:
        sent = 0

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(1000):
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

        async with peer(script) as port:
            connection, _ = await Pool().start("127.0.0.1", port, lambda: REQUEST, WAIT)
            before = -1
            while sent != before:  # until the writer is stuck
                before = sent
                await asyncio.sleep(0.1)
            assert sent < 1000 * 65536
            assert connection._buffered < HIGH_WATER + 512 * 1024
            assert len(await connection.read_all(1000 * 65536, WAIT)) == 1000 * 65536

    asyncio.run(main())


def test_an_answer_given_back_early_still_frees_its_connection() -> None:
    async def main() -> None:
        pool = Pool()
        go_on = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            await go_on.wait()
            writer.write(b"0\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

        async with peer(script) as port:
            connection, _ = await pool.start("127.0.0.1", port, lambda: REQUEST, WAIT)
            assert await connection.read(WAIT) == b"ok"
            connection.release()
            go_on.set()
            async with asyncio.timeout(WAIT):
                while not pool.idle():  # noqa: ASYNC110  the pool gives no event for it
                    await asyncio.sleep(0.01)
            assert await ask(pool, port) == (200, b"ok")
            assert pool.opened == 1

    asyncio.run(main())
