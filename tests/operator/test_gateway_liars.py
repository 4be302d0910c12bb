"""Engines that say what cannot be: their counts, reports and events cost nobody but themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headrace.controller.gateways import checked
from headrace.gateway.events import Kind, leading_pieces, read_event
from headrace.gateway.world import Address
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import (
    NAMESPACE,
    FakeGateway,
    eventually,
    make_tenant,
    make_world,
    serving,
)

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key"}
CONTEXT = 2048
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class Liar:
    """An engine by hand: a report and an answer, as given."""

    def __init__(self, answer: bytes, **report: Any):
        self.answer = answer
        self.report = json.dumps({"model": {"name": "m", "max_tokens": CONTEXT, "max_sequences": 4}, **report}).encode()
        self.polls = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            self.polls += 1
            size = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(self.report)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + size + self.report)
        else:
            writer.write(HEAD + self.answer)
        await writer.drain()
        writer.close()

    async def polled(self) -> bool:
        """It was asked for a report, and asked again since the first had come."""
        return self.polls > 1


@asynccontextmanager
async def lying(liar: Liar, *others: FakeEngine, **tenant: Any) -> AsyncIterator[FakeGateway]:
    """A gateway with this engine, and others."""
    server = await asyncio.start_server(liar.serve, "127.0.0.1", 0)
    liar.port = server.sockets[0].getsockname()[1]
    world = make_world(tenants=[make_tenant(**tenant)])
    async with serving(world) as gateway:
        known = [Address(engine.settings.instance, "127.0.0.1", engine.port) for engine in others]
        world.endpoints = {(NAMESPACE, "m"): (Address("liar", "127.0.0.1", liar.port), *known)}
        world.notify()
        await eventually(liar.polled)
        yield gateway
    server.close()


async def post(gateway: FakeGateway, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body}
    return await gateway.http.post(gateway.url + CHAT, json=fields, headers=AUTH)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def piece(content: bytes, finish: bytes = b"null", index: int = 0) -> bytes:
    row = b'{"index":%d,"delta":{"content":"%s"},"finish_reason":%s}' % (index, content, finish)
    return event(b'{"id":"a","choices":[%s]}' % row)


END = event(b"[DONE]")


def answer(usage: dict[str, Any]) -> bytes:
    told = event(json.dumps({"id": "a", "choices": [], "usage": usage}).encode())
    return piece(b"x") + piece(b"", b'"stop"') + told + END


HONEST = answer({"prompt_tokens": 3, "completion_tokens": 1})
USAGES: dict[str, dict[str, Any]] = {
    "a prompt below zero": {"prompt_tokens": -1000, "completion_tokens": 0},
    "an answer below zero": {"prompt_tokens": 3, "completion_tokens": -1000},
    "a prompt of 1e18": {"prompt_tokens": 10**18, "completion_tokens": 1},
    "a prompt of 2^70": {"prompt_tokens": 2**70, "completion_tokens": 1},
    "a prompt above the context": {"prompt_tokens": CONTEXT + 1, "completion_tokens": 1},
    "an answer above its limit": {"prompt_tokens": 3, "completion_tokens": 6},
    "an answer of 10^400": {"prompt_tokens": 3, "completion_tokens": 10**400},
    "more cached than there was": {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 10**12},
    },
}


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES.keys())
def test_a_usage_that_cannot_be_is_replaced_by_our_own_count(usage: dict[str, Any]) -> None:
    async def main() -> None:
        liar = Liar(answer(usage))
        quota = {"tokensPerMinute": 1000, "concurrentRequests": 2}
        async with lying(liar, quota=quota) as gateway:
            for stream in (True, False):
                await post(gateway, stream=stream)
            await eventually(gateway.idle, 2)
            state = checked(await gateway.state())
            tenant, row = state.tenants[0], await gateway.service_class()
            assert tenant.concurrent_requests == 0
            assert 0 < tenant.tokens_last_minute < 200, "two short prompts, by their bytes, and a word each"
            assert row.offered == 2 and row.offered_tokens == tenant.tokens_last_minute
            liar.answer = HONEST
            assert (await post(gateway)).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize("figure", [10**400, -(10**400), 2**70], ids=["10^400", "-10^400", "2^70"])
def test_a_report_that_cannot_be_leaves_the_other_engines(figure: int) -> None:
    async def main() -> None:
        liar = Liar(HONEST, queued_tokens=figure, running=1)
        async with FakeEngine(instance="honest", tokens_per_s=1000.0) as honest, lying(liar, honest) as gateway:
            assert [(await post(gateway, stream=False)).status_code for _ in range(4)] == [200] * 4
            assert len(honest.seen) == 4
            reports = {engine.pod: engine.state for engine in checked(await gateway.state()).models[0].engines}
            assert reports["liar"] is None and reports["honest"] is not None

    asyncio.run(main())


EVENTS = {
    "bytes that are no text": piece(b"\xff\xfe"),
    "half a character": piece(rb"\ud800"),
    "no text where nobody looks": event(b'{"id":"\xff","choices":[{"index":0,"delta":{"content":"a"}}]}'),
    "a choice of nobody": piece(b"x", index=7),
    "a choice before the first": piece(b"x", index=-1),
    "the end of a choice of nobody": piece(b"", b'"stop"', 99999) + END,
    "JSON of another shape": event(b'{"choices":7}'),
    "JSON without an end to its depth": event(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("sent", EVENTS.values(), ids=EVENTS.keys())
def test_an_event_that_cannot_be_reaches_no_client(sent: bytes, stream: bool) -> None:
    async def main() -> None:
        async with lying(Liar(sent + piece(b"", b'"stop"') + END)) as gateway:
            told = await post(gateway, stream=stream)
            assert (told.status_code, told.json()["error"]["code"]) == (502, "engine_failed")
            assert b"\xff" not in told.content and b"ud800" not in told.content

    asyncio.run(main())


def test_what_is_json_is_not_said_to_be_none() -> None:
    async def main() -> None:
        async with lying(Liar(event(b'{"choices":7}'))) as gateway:
            message = (await post(gateway)).json()["error"]["message"]
            assert message == "the engine sent an event that is no piece of an answer"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "quick"),
    [(b"plain", True), ("über".encode(), True), (rb"\u00fc", True), (rb"\ud83d\ude00", False), (b"\xff", False)],
    ids=["ascii", "UTF-8", "an escape", "a pair of escapes", "no text"],
)
def test_only_text_is_taken_in_one_look(content: bytes, quick: bool) -> None:
    sent = piece(content)
    assert leading_pieces(sent) == ((1, len(sent)) if quick else (0, 0))
    expected = Kind.MALFORMED if content == b"\xff" else Kind.CONTENT
    assert read_event(sent[6:-2]).kind is expected
