"""Bodies by allow-list: what is understood, what is refused and which field the error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.gateway.body import IGNORED, Body, ChatBody, decode_chat, decode_completion
from headrace.gateway.dialects import HeadraceDialect
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def plain(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi", **fields}).encode()


REFUSED = {
    "not JSON": (b"{", None, "not valid JSON"),
    "not an object": (b"[1]", None, "object"),
    "no model": (json.dumps({"messages": [USER]}).encode(), "model", "missing"),
    "no messages": (b'{"model": "m"}', "messages", "missing"),
    "empty messages": (chat(messages=[]), "messages", "length >= 1"),
    "unknown field": (chat(frobnicate=1), "frobnicate", "not supported"),
    "unknown field of a message": (chat(messages=[{**USER, "x": 1}]), "messages[0].x", "not supported"),
    "unknown role": (chat(messages=[{"role": "wizard", "content": ""}]), "messages[0].role", "invalid"),
    "image part": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        "messages[0].content[0].type",
        "invalid",
    ),
    "text for a number": (chat(temperature="hot"), "temperature", "float"),
    "temperature too high": (chat(temperature=2.1), "temperature", "<= 2"),
    "top_p zero": (chat(top_p=0), "top_p", "> 0"),
    "no choices": (chat(n=0), "n", ">= 1"),
    "too many choices": (chat(n=17), "n", "<= 16"),
    "no output": (chat(max_tokens=0), "max_tokens", ">= 1"),
    "two limits": (chat(max_tokens=1, max_completion_tokens=2), "max_completion_tokens", "differs"),
    "seed of 70 bits": (chat(seed=2**70), "seed", "<="),
    "five stops": (chat(stop=list("abcde")), "stop", "length <= 4"),
    "empty stop": (chat(stop=""), "stop", "length >= 1"),
    "penalty": (chat(frequency_penalty=0.5), "frequency_penalty", "not supported"),
    "logprobs": (chat(logprobs=True), "logprobs", "not supported"),
    "tools": (chat(tools=[{"type": "function"}]), "tools", "not supported"),
    "json mode": (chat(response_format={"type": "json_object"}), "response_format.type", "invalid"),
    "stream options without a stream": (chat(stream_options={"include_usage": True}), "stream_options", "stream: true"),
}


@pytest.mark.parametrize(("data", "param", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_chat_body_is_refused_with_the_field(data: bytes, param: str | None, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_chat(data)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"logprobs": 0}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"messages": [USER]}, "messages"),
    ],
    ids=lambda value: str(value),
)
def test_a_bad_completion_body_is_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_completion(plain(**fields))
    assert caught.value.param == param


def test_values_that_change_nothing_are_accepted() -> None:
    body = decode_chat(
        chat(
            frequency_penalty=0,
            presence_penalty=0.0,
            logit_bias={},
            logprobs=False,
            top_logprobs=None,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            temperature=None,
            stream=None,
            messages=[USER, {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None}, USER],
        )
    )
    assert not body.streams and body.choices == 1 and body.output_limit is None


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
    ids=["absent", "null", "empty", "false", "true"],
)
def test_usage_is_shown_only_if_asked_for(fields: dict[str, Any], usage: bool) -> None:
    assert decode_chat(chat(stream=True, **fields)).wants_usage is usage


def encoded(body: Body) -> dict[str, Any]:
    hints = RequestHints(id="a", holder="gw", priority=3, salt="ff")
    head, _, data = HeadraceDialect(body).encode("10.0.0.1:8000", 7, hints).partition(b"\r\n\r\n")
    assert f"content-length: {len(data)}".encode() in head
    sent: dict[str, Any] = json.loads(data)
    return sent


def test_what_the_engine_gets_is_ours() -> None:
    mine = {name: {"mine": 1} for name in IGNORED}
    body = decode_chat(chat(**mine, max_completion_tokens=99, temperature=0, stop=["x"], n=2, seed=5))
    sent = encoded(body)
    assert not set(IGNORED) - {"headrace"} & set(sent)
    assert sent["headrace"]["salt"] == "ff" and sent["headrace"]["holder"] == "gw"
    assert (sent["max_tokens"], sent["stream"], sent["stream_options"]) == (7, True, {"include_usage": True})
    assert (sent["temperature"], sent["stop"], sent["n"], sent["seed"]) == (0, ["x"], 2, 5)
    assert "max_completion_tokens" not in sent and "top_p" not in sent


def test_text_parts_are_joined_for_the_engine() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = decode_chat(chat(messages=[{"role": "user", "content": parts}]))
    assert isinstance(body, ChatBody)
    assert encoded(body)["messages"] == [{"role": "user", "content": "ab"}]


def test_a_prompt_of_tokens_is_forwarded() -> None:
    assert encoded(decode_completion(plain(prompt=[1, 2, 3])))["prompt"] == [1, 2, 3]
