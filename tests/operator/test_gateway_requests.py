"""The gateway over real HTTP, with the openai client and FakeEngines: what is answered, refused and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
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

CHAT = "/v1/chat/completions"
USER: Any = {"role": "user", "content": "hello there"}
AUTH = {"authorization": "Bearer key"}


def client(gateway: FakeGateway, key: str = "key") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=gateway.openai_url, max_retries=0)


def run(scenario: Callable[[FakeGateway, FakeEngine], Awaitable[None]], **engine: Any) -> None:
    """The scenario on one gateway, one Model and one engine."""

    async def main() -> None:
        world = make_world(
            [make_model(), make_model("private"), make_model("cold")],
            [make_tenant(models=("m", "cold", "gone")), make_tenant("gold", "gold-key", classes=["gold"])],
        )
        settings = {"max_sequences": 4, "tokens_per_s": 1000.0, **engine}
        async with FakeEngine(**settings) as fake, serving(world) as gateway:
            set_engines(world, fake)
            await scenario(gateway, fake)

    asyncio.run(main())


def test_a_chat_is_answered_whole() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        answer = await client(gateway).chat.completions.create(model="m", messages=[USER])
        assert answer.choices[0].message.content == "hello there"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.completion_tokens == 12

    run(scenario)


def test_a_chat_is_answered_in_a_stream() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        stream: Any = await client(gateway).chat.completions.create(model="m", messages=[USER], stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)
        assert engine.seen[0].raw["stream_options"] == {"include_usage": True}

    run(scenario)


def test_usage_is_streamed_to_those_who_ask() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        stream: Any = await client(gateway).chat.completions.create(
            model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12

    run(scenario)


def test_a_plain_completion_and_several_choices() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        answer = await client(gateway).completions.create(model="m", prompt="abc", n=3, max_tokens=2)
        assert [choice.text for choice in answer.choices] == ["ab"] * 3
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3

    run(scenario)


async def post(gateway: FakeGateway, path: str = CHAT, headers: dict[str, str] = AUTH, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [USER], **body} if path == CHAT else body
    return await gateway.http.post(gateway.url + path, json=fields, headers=headers)


REFUSED: dict[str, tuple[dict[str, Any], int, str, list[str]]] = {
    "no key": ({"headers": {}}, 401, "invalid_api_key", ["Authorization"]),
    "wrong key": ({"headers": {"authorization": "Bearer nope"}}, 401, "invalid_api_key", []),
    "unknown model": ({"model": "gone"}, 404, "model_not_found", ["gone"]),
    "model of others": ({"model": "private"}, 403, "model_not_allowed", ["private"]),
    "unknown class": (
        {"headers": {**AUTH, "x-headrace-class": "gold"}},
        403,
        "class_not_allowed",
        ["[interactive, batch]"],
    ),
    "no class": (
        {"headers": {"authorization": "Bearer gold-key"}},
        403,
        "class_not_allowed",
        ["[gold]", "interactive"],
    ),
    "unknown field": ({"frobnicate": 1}, 400, "invalid_request", ["frobnicate"]),
    "too long": ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, "context_length_exceeded", ["2048"]),
    "bad deadline": ({"headers": {**AUTH, "x-headrace-deadline-ms": "soon"}}, 400, "invalid_request", ["deadline"]),
    "compressed": ({"headers": {**AUTH, "content-encoding": "gzip"}}, 400, "invalid_request", ["compressed"]),
}


@pytest.mark.parametrize(("request_", "status", "code", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_request_is_refused_with_an_error_object(
    request_: dict[str, Any], status: int, code: str, words: list[str]
) -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        await engine_known(gateway)
        answer = await post(gateway, **request_)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert all(word in error["message"] for word in words)
        assert answer.headers["x-headrace-reason"] == code
        assert not engine.seen
        row = await gateway.service_class()
        assert row.offered == 0 and sum(row.outcomes.values()) == 0 and await gateway.idle()

    run(scenario)


async def engine_known(gateway: FakeGateway) -> None:
    """Until the engine has reported, and its tokenizer is known."""

    async def reported() -> bool:
        return any(engine.state for engine in (await gateway.model()).engines)

    await eventually(reported)


def test_a_prompt_beyond_the_context_is_told_both_numbers() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        await engine_known(gateway)
        fits = await post(gateway, messages=[{"role": "user", "content": "x" * (2048 - 19 - 1)}], max_tokens=5)
        assert fits.status_code == 200
        assert (fits.json()["usage"]["prompt_tokens"], fits.headers["x-headrace-max-tokens"]) == (2047, "1")
        beyond = await post(gateway, messages=[{"role": "user", "content": "x" * (2048 - 19)}])
        assert beyond.status_code == 400
        assert "2048 tokens and needs one more" in beyond.json()["error"]["message"]
        assert "context is 2048 tokens" in beyond.json()["error"]["message"]
        assert beyond.json()["error"]["param"] == "messages"

    run(scenario, tokens_per_s=1e6)


def test_what_the_engine_is_told_is_ours() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        answer = await post(
            gateway,
            headers={**AUTH, "x-request-id": "mine-1", "x-headrace-class": "batch"},
            cache_salt="theirs",
            priority=999,
            headrace={"salt": "ff", "priority": 999},
            user="u",
        )
        assert answer.status_code == 200
        raw = engine.seen[0].raw
        assert not {"cache_salt", "priority", "user"} & set(raw)
        hints = raw["headrace"]
        assert hints["holder"] == "gw-0" and hints["priority"] == 10 and len(hints["salt"]) == 64
        assert 0 < hints["ttft_ms"] <= 60_000 and hints["tpot_ms"] == 5000 and hints["left_ms"] > 0
        assert "authorization" not in engine.seen[0].headers
        assert answer.headers["x-request-id"] == "mine-1" and answer.headers["x-headrace-class"] == "batch"

    run(scenario)


def test_salts_differ_by_tenant_and_meet_in_a_group() -> None:
    async def main() -> None:
        model = make_model(cache={"scope": "group"})
        tenants = [
            make_tenant("a", "a", cacheGroup="g"),
            make_tenant("b", "b", cacheGroup="g"),
            make_tenant("c", "c"),
            make_tenant("d", "d"),
        ]
        world = make_world([model], tenants)
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            for key in "abcd":
                assert (await post(gateway, headers={"authorization": f"Bearer {key}"})).status_code == 200
            salts = [seen.raw["headrace"]["salt"] for seen in engine.seen]
            assert salts[0] == salts[1] and len(set(salts)) == 3

    asyncio.run(main())


def test_a_missing_limit_is_injected_and_said() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        without = await post(gateway)
        assert without.headers["x-headrace-max-tokens"] == "1024"
        assert engine.seen[0].raw["max_tokens"] == 1024
        with_one = await post(gateway, max_tokens=7)
        assert "x-headrace-max-tokens" not in with_one.headers
        assert engine.seen[1].raw["max_tokens"] == 7

    run(scenario)


def test_request_ids_that_are_not_well_formed_are_replaced() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        answer = await post(gateway, headers={**AUTH, "x-request-id": "a b" * 40})
        assert answer.headers["x-request-id"].startswith(engine.seen[0].raw["headrace"]["id"].split("-")[0])

    run(scenario)


def test_a_body_too_large_is_refused_unread() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world, body_bytes=1000) as gateway:
            declared = await post(gateway, messages=[{"role": "user", "content": "x" * 2000}])
            assert declared.status_code == 413 and declared.headers["connection"] == "close"

            async def pieces() -> Any:  # at most four times the limit is read
                for _ in range(30):
                    yield b"x" * 100

            chunked = await gateway.http.post(gateway.url + CHAT, content=pieces(), headers=AUTH)
            assert chunked.status_code == 413
            assert chunked.json()["error"]["code"] == "body_too_large"

    asyncio.run(main())


def test_models_are_those_of_the_tenant() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        listed = await client(gateway).models.list()
        assert [model.id for model in listed.data] == ["m", "cold"]
        assert (await client(gateway).models.retrieve("m")).id == "m"
        with pytest.raises(openai.NotFoundError):
            await client(gateway).models.retrieve("private")
        with pytest.raises(openai.AuthenticationError):
            await client(gateway, "nope").models.list()

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", CHAT, 405), ("POST", "/v1/embeddings", 404), ("GET", "/", 404), ("POST", "/v1/models", 405)],
)
def test_other_routes_are_error_objects(method: str, path: str, status: int) -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        answer = await gateway.http.request(method, gateway.url + path)
        assert answer.status_code == status and answer.json()["error"]["message"]

    run(scenario)


def test_the_client_port_shows_no_internals() -> None:
    async def scenario(gateway: FakeGateway, engine: FakeEngine) -> None:
        for path in ("/internal/v1/state", "/metrics", "/healthz"):
            assert (await gateway.http.get(gateway.url + path)).status_code == 404
            assert (await gateway.http.get(gateway.state_url + path)).status_code == 200

    run(scenario)


def test_readiness_follows_the_caches() -> None:
    async def main() -> None:
        world = make_world()
        world.synced = False
        async with serving(world) as gateway:
            assert (await gateway.http.get(gateway.state_url + "/readyz")).status_code == 503
            early = await post(gateway)
            assert early.status_code == 503 and early.headers["retry-after"] == "1"
            world.synced = True
            assert (await gateway.http.get(gateway.state_url + "/readyz")).status_code == 200

    asyncio.run(main())


def test_an_engines_refusal_reaches_the_client() -> None:
    async def main() -> None:
        answers: list[bytes] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/headrace/v1/state" in head:
                    body = json.dumps({"model": {"name": "m", "max_sequences": 4}, "total": 10, "free": 10}).encode()
                    status = b"200 OK"
                else:
                    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                    error = {"message": "stop: bad", "type": "invalid_request_error", "param": "stop"}
                    body = json.dumps({"error": {**error, "code": "invalid_request"}}).encode()
                    status = b"400 Bad Request"
                    answers.append(body)
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        world = make_world()
        async with serving(world) as gateway:
            fake = FakeEngine(port=server.sockets[0].getsockname()[1])
            fake._server.port = server.sockets[0].getsockname()[1]
            set_engines(world, fake)
            answer = await post(gateway, stream=True)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "stop"
            assert len(answers) == 1, "the client's fault is not retried"
            assert (await gateway.service_class()).offered == 0 and await gateway.idle()
        server.close()

    asyncio.run(main())
