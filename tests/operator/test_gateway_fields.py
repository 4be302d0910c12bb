"""The gateway's allow-list beside the engine's: what one knows the other knows, or the difference has its reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest

from headrace.gateway import body as mine
from headrace.gateway.body import IGNORED, decode_chat, decode_completion
from headrace.gateway.dialects import HeadraceDialect
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import FakeGateway, eventually, make_tenant, make_world, serving, set_engines
from headrace_engine.api import schema as engine
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import RequestError

AUTH = {"authorization": "Bearer key"}
USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "yes"}
PAIRS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "chat": (mine.ChatBody, engine.ChatBody),
    "completions": (mine.CompletionBody, engine.CompletionBody),
    "a message": (mine.Message, engine.Message),
    "stream_options": (mine.StreamOptions, engine.StreamOptions),
}
ONLY_THE_ENGINE = {
    "continuous_usage_stats": "the usage that clients see is the one that they are charged, known at the end",
}
ONLY_THE_GATEWAY = {
    "priority": "taken from clients of other servers and ignored: the class decides",
    "parallel_tool_calls": "ignored on both routes; the engine knows it on one",
}
NEVER_FORWARDED = {
    "cache_salt": "who shares a prefix is decided by tenant and Model, not by clients",
    "headrace": "the gateway's own hints",
    "max_completion_tokens": "becomes max_tokens",
    "stream": "engines always stream to the gateway",
    "stream_options": "the gateway always asks for the usage",
}
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 4,
    "min_p": 0.1,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 1.0},
    "seed": 2**64 - 1,
    "stop": ["a"] * engine.MAX_STOPS,
    "stop_token_ids": [1] * engine.MAX_STOP_IDS,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "ignore_eos": True,
    "min_tokens": 1,
    "n": 2,
    "max_tokens": 7,
    "logprobs": True,
    "top_logprobs": 3,
    "add_generation_prompt": True,
    "continue_final_message": True,
    "chat_template_kwargs": {"x": [1, "a"]},
    "echo": True,
    "add_special_tokens": False,
}


def names(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize(("ours", "its"), PAIRS.values(), ids=PAIRS)
def test_both_lists_have_the_same_fields_or_a_reason(ours: type[msgspec.Struct], its: type[msgspec.Struct]) -> None:
    assert names(its) - names(ours) == ONLY_THE_ENGINE.keys() & names(its)
    assert names(ours) - names(its) == ONLY_THE_GATEWAY.keys() & (names(ours) - names(its))


def test_every_reason_is_about_a_field_that_is_there() -> None:
    ours = set().union(*(names(pair[0]) for pair in PAIRS.values()))
    its = set().union(*(names(pair[1]) for pair in PAIRS.values()))
    assert its >= ONLY_THE_ENGINE.keys() and not ours & ONLY_THE_ENGINE.keys()
    assert ours >= ONLY_THE_GATEWAY.keys() | NEVER_FORWARDED.keys()
    assert its >= NEVER_FORWARDED.keys()


def acted_on(kind: type[msgspec.Struct]) -> set[str]:
    """Fields with which a client asks the engine for something."""
    ignored = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key"}
    return names(kind) - engine.NEUTRAL.keys() - ignored - {"model", "messages", "prompt"}


def encoded(route: str, **fields: Any) -> dict[str, Any]:
    if route == "chat":
        body: mine.Body = decode_chat(json.dumps({"model": "m", "messages": [USER, SAID], **fields}).encode())
    else:
        body = decode_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())
    data = HeadraceDialect(body).encode("e:1", 7, RequestHints(id="a")).partition(b"\r\n\r\n")[2]
    sent: dict[str, Any] = json.loads(data)
    return sent


ACTED_ON = [
    pytest.param(route, name, id=f"{route}-{name}")
    for route in ("chat", "completions")
    for name in sorted(acted_on(PAIRS[route][1]) - NEVER_FORWARDED.keys())
]


@pytest.mark.parametrize(("route", "name"), ACTED_ON)
def test_what_the_engine_acts_on_reaches_it(route: str, name: str) -> None:
    value = 3 if (route, name) == ("completions", "logprobs") else VALUES[name]
    asked = {"logprobs": True} if name == "top_logprobs" else {}
    assert encoded(route, **asked, **{name: value})[name] == value


@pytest.mark.parametrize("name", sorted(set(IGNORED) | NEVER_FORWARDED.keys() - {"stream_options"}))
def test_what_is_not_the_clients_to_say_does_not_reach_it(name: str) -> None:
    value = {"stream": False, "max_completion_tokens": 99}.get(name, "mine")
    sent = encoded("chat", **{name: value})
    assert "mine" not in json.dumps(sent) and "max_completion_tokens" not in sent
    assert (sent["stream"], sent["max_tokens"]) == (True, 7)


ASKS_NOTHING = [
    pytest.param(route, name, id=f"{route}-{name}")
    for route in ("chat", "completions")
    for name in sorted(engine.NEUTRAL.keys() & names(PAIRS[route][0]) - set(IGNORED))
]


@pytest.mark.parametrize(("route", "name"), ASKS_NOTHING)
def test_values_that_ask_the_engine_for_nothing_are_taken_and_dropped(route: str, name: str) -> None:
    for value in engine.NEUTRAL[name]:
        if (name, value) != ("tool_choice", "auto"):  # of no tools: that is a mistake, and told
            assert name not in encoded(route, **{name: value})


async def complete(gateway: FakeGateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post(gateway.url + "/v1/completions", json={"model": "m", **fields}, headers=AUTH)


PROMPTS: dict[str, Any] = {"texts": ["ab", "abcd"], "token ids": [[97, 98], [97, 98, 99, 100]]}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_several_prompts_are_answered_in_turn_and_charged_together(prompt: Any) -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"tokensPerMinute": 1000})])
        async with FakeEngine(tokens_per_s=2000.0) as fake, serving(world) as gateway:
            set_engines(world, fake)
            answer = await complete(gateway, prompt=prompt, n=2, max_tokens=3, echo=True)
            told = answer.json()
            assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
            texts = [one if isinstance(one, str) else fake.tokenizer.decode(one) for one in prompt for _ in range(2)]
            assert all(row["text"].startswith(text) for row, text in zip(told["choices"], texts, strict=True))
            assert told["usage"]["prompt_tokens"] == 6 and told["usage"]["completion_tokens"] <= 12
            await eventually(gateway.idle)
            assert (await gateway.state()).tenants[0].tokens_last_minute == told["usage"]["total_tokens"]
            metrics = (await gateway.http.get(gateway.state_url + "/metrics")).text
            assert "headrace_count_mismatches_total{" not in metrics
            assert (fake.seen[0].raw["prompt"], fake.seen[0].raw["n"]) == (prompt, 2)

    asyncio.run(main())


def test_each_of_several_prompts_must_fit_the_context() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=2000.0, max_tokens=100) as fake, serving(world) as gateway:
            set_engines(world, fake)
            assert (await complete(gateway, prompt=["a" * 80, "b" * 80], max_tokens=50)).status_code == 200
            assert fake.seen[0].raw["max_tokens"] == 20, "what the longest of them leaves"
            refused = await complete(gateway, prompt=["a", "b" * 100])
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
            assert len(fake.seen) == 1

    asyncio.run(main())


def test_an_echo_with_logprobs_and_nothing_behind_it() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=2000.0) as fake, serving(world) as gateway:
            set_engines(world, fake)
            for stream in (False, True):
                answer = await complete(gateway, prompt="abc", echo=True, logprobs=2, max_tokens=0, stream=stream)
                assert answer.status_code == 200 and "abc" in answer.text
            assert fake.seen[0].raw["max_tokens"] == 0
            await eventually(gateway.idle)

    asyncio.run(main())


def test_a_continued_message_is_counted_as_the_engine_counts_it() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=2000.0) as fake, serving(world) as gateway:
            set_engines(world, fake)
            for more in ({"continue_final_message": True}, {"add_generation_prompt": False}, {}):
                fields = {"model": "m", "messages": [USER, SAID], "max_tokens": 2, **more}
                answer = await gateway.http.post(gateway.url + "/v1/chat/completions", json=fields, headers=AUTH)
                assert answer.status_code == 200
            metrics = (await gateway.http.get(gateway.state_url + "/metrics")).text
            assert "headrace_count_mismatches_total{" not in metrics

    asyncio.run(main())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "both ends": ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    "a value of the engine's own": ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    "usage in every chunk": (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    "functions": ({"functions": [{}]}, "functions"),
    "beams": ({"use_beam_search": True}, "use_beam_search"),
}


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        encoded("chat", **fields)
    assert caught.value.param == param
