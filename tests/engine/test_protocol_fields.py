"""Fields of bodies in engine/PROTOCOL.md: the fake engine and the real one take, refuse and honour the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from headrace.testing.background import Background
from headrace.testing.fake_engine import FakeEngine
from headrace_wire.protocol import EngineState

USER = [{"role": "user", "content": "hi"}]
ROUTES = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": USER, "temperature": 0, "max_tokens": 4}),
    "complete": ("/v1/completions", {"model": "m", "prompt": "abc", "temperature": 0, "max_tokens": 4}),
}


@pytest.fixture(params=["fake", "real"], scope="module")
def speaking(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with Background() as background:
        if request.param == "fake":
            url = background.enter(FakeEngine(model="m", max_sequences=4, tokens_per_s=float("inf"))).url
        else:
            url = request.getfixturevalue("protocol_engine").url
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client


def post(client: httpx.Client, route: str, fields: dict[str, Any]) -> httpx.Response:
    path, body = ROUTES[route]
    return client.post(path, json={**body, **fields})


def test_the_state_tells_what_steps_take(speaking: httpx.Client) -> None:
    state = msgspec.json.decode(speaking.get("/headrace/v1/state").content, type=EngineState)
    times = state.step_times
    assert times is not None and times.steps >= 8 and state.prefill_rate > 0
    assert all(0 <= part < 1 for part in msgspec.structs.astuple(times)[:-1])
    assert times.prefill_token_s + times.attended_token_s > 0


TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    f"{route}-{name}": (route, fields)
    for route in ROUTES
    for name, fields in {
        "penalties": {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2},
        "cuts": {"min_p": 0.2, "top_p": 0.5, "top_k": 5},
        "bias": {"logit_bias": {"5": 1.5, "6": -100}},
        "least": {"min_tokens": 2},
        "ids": {"stop_token_ids": [3, 4], "ignore_eos": True},
        "shown": {"include_stop_str_in_output": True, "skip_special_tokens": False},
        "salt": {"cache_salt": "s", "headrace": {"salt": "0a"}},
        "ignored": {"user": "u", "store": False, "safety_identifier": "s", "prompt_cache_key": "k"},
        "seeded": {"seed": 5, "temperature": 1.5, "n": 2},
        "nulls": {"n": None, "stop": None, "logit_bias": None, "headrace": None, "stream_options": None},
    }.items()
} | {
    "chat-continued": (
        "chat",
        {"messages": [*USER, {"role": "assistant", "content": "yes"}], "continue_final_message": True},
    ),
    "chat-values": ("chat", {"chat_template_kwargs": {"x": 1}, "add_generation_prompt": True}),
    "complete-several": ("complete", {"prompt": ["a", "b"]}),
    "complete-several-ids": ("complete", {"prompt": [[65], [66, 67]]}),
    "complete-nothing": ("complete", {"echo": True, "max_tokens": 0}),
    "complete-no-special": ("complete", {"add_special_tokens": False}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "min-p": ("chat", {"min_p": 2}, "min_p"),
    "presence": ("chat", {"presence_penalty": 3}, "presence_penalty"),
    "frequency": ("complete", {"frequency_penalty": -3}, "frequency_penalty"),
    "repetition": ("chat", {"repetition_penalty": 0}, "repetition_penalty"),
    "top-logprobs": ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "least-above-the-limit": ("chat", {"min_tokens": 5}, "min_tokens"),
    "options-without-a-stream": ("chat", {"stream_options": {"include_usage": True}}, "stream_options"),
    "an-empty-prompt": ("complete", {"prompt": ["a", ""]}, "prompt"),
    "a-prompt-of-both": ("complete", {"prompt": [["a"]]}, "prompt"),
    "bias-of-no-number": ("complete", {"logit_bias": {"5": "x"}}, "logit_bias"),
    "tools": ("chat", {"tools": [{"type": "function"}]}, "tools"),
}


@pytest.mark.parametrize(("route", "fields"), TAKEN.values(), ids=TAKEN)
def test_fields_that_are_taken(speaking: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    response = post(speaking, route, fields)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    prompts = fields.get("prompt")
    assert len(choices) == (fields.get("n") or 1) * (len(prompts) if isinstance(prompts, list) else 1)
    assert [choice["index"] for choice in choices] == list(range(len(choices)))


@pytest.mark.parametrize(("route", "fields", "param"), REFUSED.values(), ids=REFUSED)
def test_fields_that_are_refused(speaking: httpx.Client, route: str, fields: dict[str, Any], param: str) -> None:
    response = post(speaking, route, fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert error["param"].startswith(param)


def test_an_echo_comes_first(speaking: httpx.Client) -> None:
    plain = post(speaking, "complete", {}).json()["choices"][0]["text"]
    assert post(speaking, "complete", {"echo": True}).json()["choices"][0]["text"] == "abc" + plain
    scored = post(speaking, "complete", {"echo": True, "max_tokens": 0}).json()
    assert scored["choices"][0]["text"] == "abc"
    assert (scored["choices"][0]["finish_reason"], scored["usage"]["completion_tokens"]) == ("length", 0)


def test_a_stop_string_is_kept_where_that_is_asked(speaking: httpx.Client) -> None:
    whole = post(speaking, "complete", {"max_tokens": 12}).json()["choices"][0]["text"]
    stop = whole[1:3]
    for keeps in (False, True):
        fields = {"max_tokens": 12, "stop": [stop], "include_stop_str_in_output": keeps}
        choice = post(speaking, "complete", fields).json()["choices"][0]
        assert choice["text"] == whole[: whole.index(stop) + keeps * len(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    chunks = [
        json.loads(line[6:])["choices"][0]
        for line in post(speaking, "complete", {"max_tokens": 12, "stop": [stop], "stream": True}).text.splitlines()
        if line.startswith("data: {")
    ]
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", stop)
    assert not any(chunk["finish_reason"] for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
def test_logprobs_have_one_entry_a_token(speaking: httpx.Client, stream: bool) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "ignore_eos": True, "stream": stream}
    response = post(speaking, "chat", fields)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    found = events if stream else [response.json()]
    rows = [row for one in found for row in one["choices"] if row["logprobs"]]
    entries = [entry for row in rows for entry in row["logprobs"]["content"]]
    assert len(entries) == 4
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)


def test_usage_in_every_chunk_where_that_is_asked(speaking: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = post(speaking, "chat", {"stream": True, "stream_options": options, "ignore_eos": True})
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    texts = [event for event in events if any(row["delta"].get("content") for row in event["choices"])]
    assert texts
    assert all(event["usage"]["prompt_tokens"] > 0 for event in texts)
    assert events[-1]["usage"]["completion_tokens"] == 4
