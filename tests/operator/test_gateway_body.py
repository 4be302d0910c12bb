"""Bodies by allow-list: what is understood, what is refused and which field the error names."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.body import IGNORED, Body, ChatBody, CompletionBody, decode_chat, decode_completion
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
    "nothing": (b" \n", None, "the body is empty"),
    "half a surrogate pair": (b'{"model": "\\ud800"}', None, "half of a surrogate pair"),
    "cut off": (b'{"model": "m', None, "truncated"),
    "not an object": (b"[1]", None, "object"),
    "no model": (json.dumps({"messages": [USER]}).encode(), "model", "missing"),
    "no messages": (b'{"model": "m"}', "messages", "missing"),
    "empty messages": (chat(messages=[]), "messages", "length >= 1"),
    "unknown field": (chat(frobnicate=1), "frobnicate", "not supported"),
    "unknown field of a message": (chat(messages=[{**USER, "x": 1}]), "messages[0].x", "not supported"),
    "unknown role": (
        chat(messages=[{"role": "wizard", "content": ""}]),
        "messages[0].role",
        "; write assistant or developer",
    ),
    "image part": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        "messages[0].content[0].type",
        "invalid enum value 'image_url'; write text",
    ),
    "text for a number": (chat(temperature="hot"), "temperature", "float"),
    "temperature too high": (chat(temperature=2.1), "temperature", "<= 2"),
    "top_p zero": (chat(top_p=0), "top_p", "> 0"),
    "no choices": (chat(n=0), "n", ">= 1"),
    "too many choices": (chat(n=17), "n", "<= 16"),
    "no output": (chat(max_tokens=0), "max_tokens", ">= 1"),
    "two limits": (chat(max_tokens=1, max_completion_tokens=2), "max_completion_tokens", "differs"),
    "seed of 70 bits": (chat(seed=2**70), "seed", "<="),
    "17 stops": (chat(stop=["a"] * 17), "stop", "length <= 16"),
    "empty stop": (chat(stop=""), "stop", "length >= 1"),
    "penalty": (chat(frequency_penalty=2.5), "frequency_penalty", "<= 2"),
    "presence": (chat(presence_penalty=-2.01), "presence_penalty", ">= -2"),
    "repetition zero": (chat(repetition_penalty=0), "repetition_penalty", "> 0"),
    "repetition high": (chat(repetition_penalty=11), "repetition_penalty", "<= 10"),
    "min_p": (chat(min_p=1.1), "min_p", "<= 1"),
    "bias too high": (chat(logit_bias={"5": 101}), "logit_bias[...]", "<= 100"),
    "bias of a word": (chat(logit_bias={"five": 1}), "logit_bias", "matching"),
    "1025 biases": (chat(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "length <= 1024"),
    "129 stop ids": (chat(stop_token_ids=[1] * 129), "stop_token_ids", "length <= 128"),
    "negative stop id": (chat(stop_token_ids=[-1]), "stop_token_ids[0]", ">= 0"),
    "negative least": (chat(min_tokens=-1), "min_tokens", ">= 0"),
    "least above the limit": (chat(min_tokens=9, max_tokens=8), "min_tokens", "limit of 8"),
    "21 alternatives": (chat(logprobs=True, top_logprobs=21), "top_logprobs", "<= 20"),
    "alternatives of nothing": (chat(top_logprobs=2), "top_logprobs", "needs logprobs"),
    "logprobs as a number": (chat(logprobs=3), "logprobs", "bool"),
    "echo of a chat": (chat(echo=True), "echo", "not supported"),
    "tools": (chat(tools=[{"type": "function"}]), "tools", "not supported"),
    "json mode": (chat(response_format={"type": "json_object"}), "response_format.type", "; write text"),
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
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": ["a", [5]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a"] * 5, "n": 13}, "prompt"),
        ({"logprobs": 1, "top_logprobs": 1}, "top_logprobs"),
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


def test_sampling_fields_reach_the_engine_as_they_came() -> None:
    fields = {
        "min_p": 0.1,
        "frequency_penalty": -2,
        "presence_penalty": 0,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "7": 0.5},
        "stop_token_ids": [1, 2],
        "min_tokens": 3,
        "ignore_eos": False,
    }
    sent = encoded(decode_chat(chat(**fields, logprobs=True, top_logprobs=0)))
    assert {name: sent[name] for name in fields} == fields
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 0)
    sent = encoded(decode_completion(plain(**fields, logprobs=0)))
    assert {name: sent[name] for name in fields} == fields
    assert sent["logprobs"] == 0 and "top_logprobs" not in sent
    assert encoded(decode_completion(plain(echo=True, logprobs=False)))["echo"] is True


def test_what_a_client_leaves_out_is_the_models_own() -> None:
    assert set(encoded(decode_chat(chat()))) == {
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "headrace",
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({name for kind in (ChatBody, CompletionBody) for name in kind.__struct_fields__})


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=12), VALUES, max_size=4))
def test_any_value_of_any_field_is_decoded_or_refused(fields: dict[str, Any]) -> None:
    for decode, data in ((decode_chat, chat(**fields)), (decode_completion, plain(**fields))):
        try:
            body = decode(data)
        except RequestError as error:
            assert error.reason is Reason.INVALID_REQUEST
            json.dumps(error.body()).encode()
        else:
            encoded(body)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: chat(messages=text)))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (decode_chat, decode_completion):
        with contextlib.suppress(RequestError):
            encoded(decode(data))


BOMBS = {
    "arrays": b"[" * 1_000_000,
    "objects": b'{"user":' * 300_000,
    "closed": chat(user=1)[:-2] + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not a number": chat(temperature=float("nan")),
    "infinity": chat(temperature=float("inf")),
    "beyond a double": chat()[:-1] + b',"temperature":1e999}',
    "five thousand digits": chat()[:-1] + b',"seed":' + b"9" * 5000 + b"}",
    "half a pair": b'{"model":"m","messages":[{"role":"user","content":"a\\ud800b"}]}',
    "half a pair as a model": b'{"model":"\\udc00","messages":[{"role":"user","content":"a"}]}',
    "no Unicode": b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
    "no Unicode in a name": b'{"\xff":1}',
    "UTF-16": chat().decode().encode("utf-16"),
    "a mark first": b"\xef\xbb\xbf" + chat(),
    "more behind": chat() + b"x",
    "nothing": b"",
    "spaces": b"   ",
    "null": b"null",
    "a name of 100 kB": b'{"' + b"a" * 100_000 + b'":1}',
    "a name with quotes": b'{"a`b\\n\\"":1}',
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_bodies_made_to_break_are_refused_shortly(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode_chat(data)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert len(caught.value.message) < 600 and len(caught.value.param or "") <= 200
    json.dumps(caught.value.body()).encode()


def test_of_two_equal_names_the_last_counts() -> None:
    assert decode_chat(b'{"model":"a","model":"m","messages":[{"role":"user","content":"x"}]}').model == "m"
