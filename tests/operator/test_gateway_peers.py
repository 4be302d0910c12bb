"""Engines that answer wrongly, in every way that a scripted peer can: what the client gets, and that nothing leaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headrace.gateway.world import Address
from headrace.testing.fake_world import NAMESPACE, FakeGateway, eventually, make_world, serving

AUTH = {"authorization": "Bearer key"}
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
DONE = b"data: [DONE]\n\n"
GOOD = piece("hel") + piece("lo") + piece("", "stop") + USAGE + DONE
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(*parts: bytes, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if end else b"")


def whole(status: bytes, data: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"content-length: %d" % len(data), b"", data])


class Peer:
    """An engine whose every answer to a request is given: bytes, then the connection is closed."""

    def __init__(self, *scripts: bytes):
        self.scripts = list(scripts)  # the last one is repeated
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"/headrace/v1/state" in head:
                    state = {"model": {"name": "m", "max_sequences": 4}, "total": 100, "free": 100}
                    writer.write(whole(b"200 OK", json.dumps(state).encode()))
                    continue
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.requests += 1
                writer.write(self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0])
                await writer.drain()
                break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def facing(*scripts: bytes, **settings: Any) -> AsyncIterator[tuple[Peer, FakeGateway]]:
    peer, world = Peer(*scripts), make_world()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with serving(world, **settings) as gateway:
        port = server.sockets[0].getsockname()[1]
        world.endpoints = {(NAMESPACE, "m"): (Address("peer", "127.0.0.1", port),)}
        world.notify()

        async def reported() -> bool:
            return any(engine.state for engine in (await gateway.model()).engines)

        await eventually(reported)
        yield peer, gateway
        await eventually(gateway.idle)
    server.close()


async def post(gateway: FakeGateway, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return await gateway.http.post(gateway.url + "/v1/chat/completions", json=fields, headers=AUTH)


def text(answer: httpx.Response) -> str:
    """The whole text of an answer, streamed or not."""
    if answer.headers["content-type"].startswith("application/json"):
        return str(answer.json()["choices"][0]["message"]["content"])
    lines = [line[5:] for line in answer.text.splitlines() if line.startswith(("data: {", "data:{"))]
    return "".join(c["delta"].get("content") or "" for line in lines for c in json.loads(line).get("choices", ()))


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


RIGHT = {
    "at once": SSE + chunked(GOOD),
    "byte by byte": SSE + chunked(*(bytes([b]) for b in GOOD)),
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + SSE + chunked(GOOD),
    "early hints first": b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + SSE + chunked(GOOD),
    "until it closes": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + GOOD,
    "no content type": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(GOOD),
    "lines end in CRLF": SSE + chunked(crlf(GOOD)),
    "comments": SSE + chunked(b": hello\n\n", GOOD[:-14], b": still here\n\n", DONE),
    "fields of no use": SSE + chunked(b"retry: 5\n\nevent: x\nid: 7\n" + GOOD),
    "no space": SSE + chunked(GOOD.replace(b"data: ", b"data:")),
    "spaced JSON": SSE + chunked(GOOD.replace(b'":', b'": ')),
    "no last empty line": SSE + chunked(GOOD[:-2]),
    "more behind the end": SSE + chunked(GOOD, b"data: more\n\n"),
    "trailers": SSE + chunked(GOOD, end=False) + b"0\r\nx-trailer: 1\r\n\r\n",
}


@STREAM
@pytest.mark.parametrize("script", RIGHT.values(), ids=RIGHT.keys())
def test_every_right_answer_is_understood(script: bytes, stream: bool) -> None:
    async def main() -> None:
        async with facing(script) as (peer, gateway):
            answer = await post(gateway, stream=stream)
            assert answer.status_code == 200 and text(answer) == "hello"
            assert ("[DONE]" in answer.text) is stream
            assert "usage" not in answer.text or not stream, "nobody asked for usage"
            assert peer.requests == 1
            await eventually(gateway.idle)
            assert (await gateway.service_class()).outcomes["good"] == 1
            assert (await gateway.state()).tenants[0].tokens_last_minute == 5

    asyncio.run(main())


ERROR = event(error={"message": "no", "type": "server_error", "code": "engine_failed"})
WRONG = {
    "a web page": whole(b"200 OK", b"<html>\n\n</html>", b"content-type: text/html"),
    "JSON instead of a stream": whole(b"200 OK", b"{}", b"content-type: application/json"),
    "nothing": whole(b"200 OK", b""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "a redirect": whole(b"302 Found", b"", b"location: http://127.0.0.1:1/"),
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxxxx",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "an error that is no JSON": whole(b"500 Oops", b"<html>"),
    "an error that is a text": whole(b"500 Oops", b'{"error": "text"}'),
    "an error of the wrong types": whole(b"500 Oops", b'{"error": {"message": 1, "code": []}}'),
    "an error of 200 kB": whole(b"500 Oops", b"x" * 200_000),
    "only comments": SSE + chunked(b": a\n\n: b\n\n"),
    "an event that is no JSON": SSE + chunked(b"data: {\n\n"),
    "half an event": SSE + chunked(GOOD[:20]),
    "a number": SSE + chunked(b"data: 5\n\n"),
    "choices of the wrong type": SSE + chunked(b'data: {"choices":{}}\n\n'),
    "content of the wrong type": SSE + chunked(b'data: {"choices":[{"delta":{"content":5}}]}\n\n'),
    "no Unicode": SSE + chunked(b'data: {"choices":[{"finish_reason":"\xff"}]}\n\n'),
    "the end alone": SSE + chunked(DONE),
    "an error event": SSE + chunked(ERROR),
    "an event without end": SSE + chunked(b"data: " + b"x" * (5 << 20)),
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "a chunk of no size": SSE + b"zz\r\n",
}


@STREAM
@pytest.mark.parametrize("script", WRONG.values(), ids=WRONG.keys())
def test_every_wrong_answer_is_an_honest_error(script: bytes, stream: bool) -> None:
    async def main() -> None:
        async with facing(script) as (peer, gateway):
            answer = await post(gateway, stream=stream)
            assert answer.status_code == 502, answer.text
            error = answer.json()["error"]
            assert error["code"] == "engine_failed" and error["type"] == "server_error"
            assert 1 <= peer.requests <= 2
            await eventually(gateway.idle)
            assert {k: v for k, v in (await gateway.service_class()).outcomes.items() if v} == {"error": 1}
            assert (await gateway.state()).tenants[0].tokens_last_minute == 0, "nothing was made"

    asyncio.run(main())


CODES = {
    "unauthorized": ("invalid_api_key", 401, 502, "engine_failed"),
    "quota": ("quota_exceeded", 429, 502, "engine_failed"),
    "cancelled": ("cancelled", 499, 502, "engine_failed"),
    "slow reader": ("slow_reader", 499, 502, "engine_failed"),
    "unknown": ("teapot", 418, 502, "engine_failed"),
    "invalid": ("invalid_request", 400, 400, "invalid_request"),
    "context": ("context_length_exceeded", 400, 400, "context_length_exceeded"),
}


@pytest.mark.parametrize(("code", "status", "shown", "as_code"), CODES.values(), ids=CODES.keys())
def test_only_reasons_that_are_the_engines_reach_the_client(code: str, status: int, shown: int, as_code: str) -> None:
    async def main() -> None:
        body = json.dumps({"error": {"message": "words", "type": "x", "param": "p", "code": code}}).encode()
        async with facing(whole(b"%d Word" % status, body)) as (_, gateway):
            answer = await post(gateway)
            assert (answer.status_code, answer.json()["error"]["code"]) == (shown, as_code)

    asyncio.run(main())


def test_a_stream_cut_at_any_byte_ends_in_an_error_and_charges_what_was_made() -> None:
    body = chunked(piece("hel"), piece("lo"), piece("", "stop"), USAGE, DONE)
    script = SSE + body

    async def cut(at: int) -> None:
        async with facing(script[:at], retry_percent=0) as (_, gateway):
            answer = await post(gateway, stream=True)
            if answer.status_code == 200:
                complete = "[DONE]" in answer.text
                assert complete or '"error"' in answer.text.strip().rsplit("\n\n", 1)[-1]
                assert complete is (text(answer) == "hello" and at >= len(SSE) + body.index(DONE) + len(DONE))
            else:
                assert answer.status_code == 502 and at <= len(SSE) + body.index(b"lo"), (at, answer.text)
            await eventually(gateway.idle)
            charged = (await gateway.state()).tenants[0].tokens_last_minute
            assert charged == 0 or "hel" in text(answer), "only what was made is charged"

    async def main() -> None:
        for at in range(0, len(script) + 1, 13):
            await cut(at)

    asyncio.run(main())


SHOWN: dict[str, Callable[[str], bool]] = {
    "a comment does not commit": lambda answer: ": hello" not in answer,
    "the answer of the second try": lambda answer: answer.count('"content":"hel"') == 1,
}


@pytest.mark.parametrize("holds", SHOWN.values(), ids=SHOWN.keys())
def test_a_comment_before_the_first_event_leaves_room_for_another_try(holds: Callable[[str], bool]) -> None:
    async def main() -> None:
        async with facing(SSE + chunked(b": hello\n\n"), SSE + chunked(GOOD)) as (peer, gateway):
            answer = await post(gateway, stream=True)
            assert answer.status_code == 200 and text(answer) == "hello" and holds(answer.text)
            assert peer.requests == 2

    asyncio.run(main())


def test_log_probabilities_are_joined_and_streamed() -> None:
    def entry(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}

    def part(token: str, finish: str | None = None) -> bytes:
        logprobs = {"content": [entry(token)], "refusal": None}
        choice = {"index": 0, "delta": {"content": token}, "logprobs": logprobs, "finish_reason": finish}
        return event(choices=[choice])

    script = SSE + chunked(part("a"), part("error"), part("b", "stop"), USAGE, DONE)

    async def main() -> None:
        async with facing(script) as (_, gateway):
            answer = (await post(gateway, logprobs=True)).json()["choices"][0]
            assert answer["message"]["content"] == "aerrorb"
            assert [e["token"] for e in answer["logprobs"]["content"]] == ["a", "error", "b"]
            assert answer["logprobs"]["refusal"] is None
            streamed = await post(gateway, logprobs=True, stream=True)
            assert text(streamed) == "aerrorb" and streamed.text.count('"logprob":-0.5') == 3

    asyncio.run(main())
