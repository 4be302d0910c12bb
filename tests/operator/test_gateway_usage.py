"""What clients are told of their usage is what they are charged for; and what cannot fit is not counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import (
    FakeGateway,
    eventually,
    make_model,
    make_tenant,
    make_world,
    serving,
    set_engines,
)
from headrace_wire.chat import ChatTokenizer

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key"}
QUOTA = {"tokensPerMinute": 100_000}
CONTEXT = 2048


class Lies(FakeEngine):
    """A FakeEngine whose usage is `said`; None: it says none at all. `prompts` counts what it was asked."""

    said: dict[str, Any] | None = None
    early: dict[str, Any] | None = None  # what it says where a choice ends

    def rewritten(self, event: bytes) -> bytes:
        """An event as this engine sends it."""
        if self.early is not None and b'"finish_reason":"' in event:
            chunk = json.loads(event.removeprefix(b"data: "))
            return b"data: " + json.dumps({**chunk, "usage": self.early}).encode() + b"\n\n"
        if b'"usage":{' not in event:
            return event
        chunk = json.loads(event.removeprefix(b"data: "))
        if self.said is None:
            return b""
        return b"data: " + json.dumps({**chunk, "usage": self.said}).encode() + b"\n\n"


@asynccontextmanager
async def lying(
    said: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch, early: dict[str, Any] | None = None
) -> AsyncIterator[FakeGateway]:
    """A gateway before a FakeEngine that lies on its way out: what it writes is changed behind its back."""
    from headrace.gateway.upstream import Connection

    engine, read = Lies(tokens_per_s=2000.0), Connection.read
    engine.said, engine.early = said, early

    async def changed(connection: Connection, wait_s: float) -> bytes:
        data = await read(connection, wait_s)
        return b"".join(engine.rewritten(event + b"\n\n") for event in data.split(b"\n\n") if event)

    monkeypatch.setattr(Connection, "read", changed)
    world = make_world([make_model(context={"maxTokens": CONTEXT})], [make_tenant(quota=QUOTA)])
    async with engine, serving(world) as gateway:
        set_engines(world, engine)
        yield gateway


async def ask(gateway: FakeGateway, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **fields}
    return await gateway.http.post(gateway.url + CHAT, json=body, headers=AUTH)


def usages(stream: str) -> list[Any]:
    events = [line[6:] for line in stream.split("\n") if line.startswith("data: {")]
    return [chunk["usage"] for chunk in map(json.loads, events) if chunk.get("usage") is not None]


async def charged(gateway: FakeGateway) -> int:
    """Tokens that the tenant has been charged with, once all is settled."""
    await eventually(gateway.idle)
    return (await gateway.state()).tenants[0].tokens_last_minute


CANNOT_BE: dict[str, dict[str, Any] | None] = {
    "a prompt below zero": {"prompt_tokens": -1000, "completion_tokens": 2, "total_tokens": -998},
    "a prompt above the context": {"prompt_tokens": CONTEXT + 1, "completion_tokens": 2, "total_tokens": CONTEXT + 3},
    "an answer above its limit": {"prompt_tokens": 3, "completion_tokens": 10**6, "total_tokens": 10**6 + 3},
    "more cached than there was": {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 99},
    },
    "no usage at all": None,
}


@pytest.mark.parametrize("said", CANNOT_BE.values(), ids=CANNOT_BE)
def test_a_client_is_told_what_it_is_charged_and_no_lie(
    said: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with lying(said, monkeypatch) as gateway:
            whole = (await ask(gateway)).json()["usage"]
            first = await charged(gateway)
            assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"] == first
            assert 3 <= whole["prompt_tokens"] < 100 and 1 <= whole["completion_tokens"] <= 5
            assert whole["prompt_tokens_details"] == {"cached_tokens": 0}
            stream = await ask(gateway, stream=True, stream_options={"include_usage": True})
            (told,) = usages(stream.text)
            assert told == whole and await charged(gateway) == first + told["total_tokens"]
            assert stream.text.endswith("data: [DONE]\n\n")
            quiet = await ask(gateway, stream=True)
            assert usages(quiet.text) == [], "nobody asked"

    asyncio.run(main())


MENDED: dict[str, tuple[dict[str, Any], int]] = {
    "a total that is no sum": ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 10**6}, 9),
    "no total": ({"prompt_tokens": 7, "completion_tokens": 2}, 9),
    "figures that nobody knows": (
        {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "cost": -5, "completion_tokens_details": {}},
        9,
    ),
}


@pytest.mark.parametrize(("said", "total"), MENDED.values(), ids=MENDED)
def test_only_what_was_understood_of_a_usage_is_passed_on(
    said: dict[str, Any], total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with lying(said, monkeypatch) as gateway:
            whole = (await ask(gateway)).json()["usage"]
            stream = await ask(gateway, stream=True, stream_options={"include_usage": True})
            assert usages(stream.text) == [whole]
            assert whole == {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "total_tokens": total,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert await charged(gateway) == 2 * total, "an engine's count that can be is binding"

    asyncio.run(main())


HONEST = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@pytest.mark.parametrize(
    ("early", "shown"),
    [({**HONEST, "prompt_tokens": -5}, 1), (HONEST, 2)],
    ids=["that cannot be", "that can be"],
)
def test_a_usage_where_a_choice_ends_is_shown_if_it_can_be(
    early: dict[str, Any], shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with lying(HONEST, monkeypatch, early) as gateway:
            stream = await ask(gateway, stream=True, stream_options={"include_usage": True})
            told = usages(stream.text)
            assert told == [{**HONEST, "prompt_tokens_details": {"cached_tokens": 0}}] * shown
            assert stream.text.endswith("data: [DONE]\n\n") and await charged(gateway) == 9

    asyncio.run(main())


BODIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "x" * 300_000}]}, "messages"),
    "plain": ("/v1/completions", {"prompt": "x" * 300_000}, "prompt"),
    "one of several": ("/v1/completions", {"prompt": ["x", "x" * 300_000]}, "prompt"),
}


@pytest.mark.parametrize(("path", "fields", "param"), BODIES.values(), ids=BODIES)
def test_a_prompt_that_cannot_fit_costs_no_counting(
    path: str, fields: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    encode = ChatTokenizer._encode

    def noted(tokenizer: ChatTokenizer, text: str, **more: Any) -> list[int]:
        counted.append(len(text))
        return encode(tokenizer, text, **more)

    async def main() -> None:
        world = make_world([make_model(context={"maxTokens": CONTEXT})], [make_tenant(quota=QUOTA)])
        async with FakeEngine(tokens_per_s=2000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            assert (await ask(gateway)).status_code == 200
            before = await charged(gateway)
            monkeypatch.setattr(ChatTokenizer, "_encode", noted)
            refused = await gateway.http.post(gateway.url + path, json={"model": "m", **fields}, headers=AUTH)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
            assert "300" in error["message"] and f"only {CONTEXT} tokens fit" in error["message"]
            assert counted == [] and len(engine.seen) == 1
            assert await charged(gateway) == before, "what is refused costs nothing"

    asyncio.run(main())
