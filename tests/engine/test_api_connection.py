"""The engine's side of a connection, on a clock that leaps: what is no body is bounded, and nothing lasts for ever."""

from __future__ import annotations

import asyncio

import pytest

from headrace.testing.wire import SLOW_S, Talk, talking
from headrace_engine.api.connection import HEAD_S, MAX_HEAD, Connection

READ = 10_000
CHUNKED = b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def get(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"host: x", *headers, b"", b""])


def post(path: bytes, data: bytes, *headers: bytes) -> bytes:
    length = b"content-length: %d" % len(data)
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"host: x", length, *headers, b"", data])


@pytest.mark.parametrize(
    ("first", "piece"),
    [(b"0\r\n", b"a: b\r\n" * 1600), (b"0\r\na: ", b"b" * READ), (b"1;a=", b"b" * READ)],
    ids=["fields", "one-field", "an-extension"],
)
@pytest.mark.parametrize(("path", "answered"), [(b"/nothing", 1), (b"/", 0)], ids=["answered", "awaited"])
def test_of_engines_what_follows_a_body_is_bounded(path: bytes, answered: int, first: bytes, piece: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(CHUNKED % path + first)
        assert len(talk.answers) == answered
        read = 0
        while not talk.wire.is_closing() and read < 100 * MAX_HEAD:
            await talk.say(piece)
            read += len(piece)
        assert MAX_HEAD < read <= MAX_HEAD + len(piece)
        assert len(talk.answers) == 1, "nothing is sent that could be taken for the next answer"
        assert len(talk.seen[0]["headers"]) == 2

    talking(Connection, script)


def test_of_engines_trailers_are_no_headers() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(CHUNKED % b"/" + b"1\r\nx\r\n0\r\nauthorization: Bearer key\r\n\r\n" + get(b"/nothing"))
        assert [[name for name, _ in scope["headers"]] for scope in talk.seen] == [
            [b"host", b"transfer-encoding"],
            [b"host"],
        ]
        assert talk.answers == [(200, b"1"), (200, b"0")]

    talking(Connection, script)


@pytest.mark.parametrize(
    ("first", "then", "more"),
    [
        (get(b"/nothing", b"content-length: 1000"), b"x", b"x"),
        (get(b"/"), b"\r\n", b"\r\n"),
        (get(b"/"), b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
        (CHUNKED % b"/nothing" + b"0\r\n", b"a: b\r\n", b"a: b\r\n"),
    ],
    ids=["a-promised-body", "bare-lines", "a-half-head", "trailers"],
)
def test_of_engines_what_trickles_after_an_answer_keeps_no_connection(first: bytes, then: bytes, more: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(first)
        assert talk.statuses == [200]
        began = asyncio.get_running_loop().time()
        await talk.say(then)
        for _ in range(20):
            await asyncio.sleep(HEAD_S / 8)
            if not talk.wire.is_closing():
                await talk.say(more)
        assert talk.wire.closed_at == pytest.approx(began + HEAD_S)

    talking(Connection, script)


def test_of_engines_a_read_that_ends_a_body_is_no_head() -> None:
    """200 KB of body and the first bytes of the next request in one read."""

    async def script(talk: Talk) -> None:
        second = get(b"/nothing")
        await talk.say(post(b"/", b"a" * 200_000) + second[:11])
        await talk.say(second[11:])
        assert talk.answers == [(200, b"200000"), (200, b"0")]
        assert not talk.wire.is_closing()

    talking(Connection, script)


@pytest.mark.parametrize(
    ("then", "statuses"),
    [(b"GET / HT", [200]), (b"\0\1\2\r\n", [200, 400]), (b"GET / HTTP/1.1\r\nx: " + b"a" * 2 * MAX_HEAD, [200, 431])],
    ids=["a-half-head", "no-head", "a-head-too-long"],
)
def test_of_engines_what_comes_behind_a_running_request_does_not_end_it(then: bytes, statuses: list[int]) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(get(b"/slow"))
        await talk.say(then)
        await asyncio.sleep(SLOW_S - 1)
        assert talk.answers == [] and not talk.wire.is_closing()
        await asyncio.sleep(2)
        assert talk.statuses == statuses
        await asyncio.sleep(HEAD_S)
        assert talk.wire.is_closing()

    talking(Connection, script)


@pytest.mark.parametrize("wait", [False, True], ids=["at-once", "waiting"])
def test_of_engines_a_body_that_breaks_behind_a_running_request_ends_after_both_answers(wait: bool) -> None:
    async def script(talk: Talk) -> None:
        await talk.say((get(b"/slow") if wait else b"") + CHUNKED % b"/")
        await talk.say(b"1\r\nx\r\nzz\r\n")
        await asyncio.sleep(SLOW_S + 1)
        assert talk.statuses == [*[200] * wait, 400] and talk.wire.is_closing()

    talking(Connection, script)


UPGRADE = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")


@pytest.mark.parametrize(
    ("first", "size"),
    [
        (get(b"/", *UPGRADE), b"0"),
        (post(b"/", b"hello", *UPGRADE), b"5"),
        (post(b"/", b"", *UPGRADE), b"0"),
        (b"\r\n".join([(CHUNKED % b"/")[:-4], *UPGRADE, b"", b"2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n"]), b"3"),
    ],
    ids=["no-body", "a-body", "an-empty-body", "chunks"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["one-read", "bytes"])
def test_of_engines_the_wish_for_another_protocol_is_ignored(first: bytes, size: bytes, whole: bool) -> None:
    async def script(talk: Talk) -> None:
        data = first + post(b"/", b"second")
        for piece in [data] if whole else [data[i : i + 1] for i in range(len(data))]:
            await talk.say(piece)
        assert talk.answers == [(200, size), (200, b"6")]
        assert talk.seen[1]["headers"] == [(b"host", b"x"), (b"content-length", b"6")]

    talking(Connection, script)


def test_of_engines_a_tunnel_is_refused() -> None:
    async def script(talk: Talk) -> None:
        await talk.say(b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n" + get(b"/"))
        assert talk.statuses == [400] and talk.seen == [] and talk.wire.is_closing()

    talking(Connection, script)


@pytest.mark.parametrize("before", [b"", get(b"/nothing")], ids=["first", "behind-another"])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nhost:\r\n\r\n", 200),
    ],
    ids=["none", "two", "two-of-1.0", "none-of-1.0", "empty"],
)
def test_of_engines_a_request_has_one_host(before: bytes, head: bytes, status: int) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(before + head)
        assert talk.statuses == [*[200] * bool(before), status]
        assert (b"one Host header" in bytes(talk.wire.written)) is (status == 400)

    talking(Connection, script)
