"""Bodies: what is accepted, what is refused and with which field; nothing but RequestError ever comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.examples import examples
from headrace_engine.api.reading import read_chat, read_completion
from headrace_engine.api.schema import MAX_STOPS, MAX_TOTAL_CHOICES
from headrace_wire.reasons import Reason, RequestError

USER = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": USER, **fields}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "p", **fields}).encode()


ACCEPTED: dict[str, dict[str, Any]] = {
    "neutral-penalties": {"presence_penalty": 0, "frequency_penalty": 0.0},
    "all-of-sampling": {
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "6": 100.0},
        "min_tokens": 2,
        "max_tokens": 2,
    },
    "logprobs": {"logprobs": True},
    "top-logprobs": {"logprobs": True, "top_logprobs": 20},
    "neutral-logprobs": {"logprobs": False, "top_logprobs": None},
    "neutral-tools": {"tools": [], "tool_choice": "none"},
    "text-format": {"response_format": {"type": "text"}},
    "whole-number-as-temperature": {"temperature": 1},
    "one-stop": {"stop": "x"},
    "top-k-off": {"top_k": -1},
    "negative-seed": {"seed": -5},
    "ignored": {"user": {"any": "thing"}, "metadata": None, "store": True},
    "stream-options": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}},
    "developer": {"messages": [{"role": "developer", "content": "x"}, *USER]},
    "an-assistant-that-said-nothing": {"messages": [*USER, {"role": "assistant", "content": None}, *USER]},
    "continued": {"continue_final_message": True, "add_generation_prompt": False},
    "values-of-the-template": {"chat_template_kwargs": {"enable_thinking": False}},
    "shown-parts": {"include_stop_str_in_output": True, "skip_special_tokens": False},
    "salt-of-the-client": {"cache_salt": "tenant"},
    "neutral-search": {"use_beam_search": False, "length_penalty": 1.0, "modalities": ["text"], "documents": []},
    "ignored-names": {"safety_identifier": "u", "prompt_cache_key": "k"},
    "message-as-a-client-library-dumps-it": {
        "messages": [*USER, {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}]
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "presence-high": ({"presence_penalty": 2.1}, "presence_penalty"),
    "frequency-low": ({"frequency_penalty": -3}, "frequency_penalty"),
    "repetition-zero": ({"repetition_penalty": 0}, "repetition_penalty"),
    "repetition-high": ({"repetition_penalty": 1e9}, "repetition_penalty"),
    "min-p-above-one": ({"min_p": 1.1}, "min_p"),
    "bias-high": ({"logit_bias": {"5": 101}}, "logit_bias"),
    "bias-word": ({"logit_bias": {"five": 1}}, "logit_bias"),
    "bias-negative-id": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "bias-huge-id": ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    "bias-other-digits": ({"logit_bias": {"²": 1}}, "logit_bias"),
    "bias-text": ({"logit_bias": {"5": "1"}}, "logit_bias"),
    "biases-many": ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    "min-tokens-negative": ({"min_tokens": -1}, "min_tokens"),
    "min-tokens-above-the-limit": ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
    "logprobs-count-in-a-chat": ({"logprobs": 3}, "logprobs"),
    "top-logprobs-alone": ({"top_logprobs": 3}, "top_logprobs"),
    "top-logprobs-many": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "echo-in-a-chat": ({"echo": True}, "echo"),
    "options-without-a-stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "continued-and-begun": ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    "a-value-of-the-engine": ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    "values-of-no-object": ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    "another-template": ({"chat_template": "{{ messages }}"}, "chat_template"),
    "empty-salt": ({"cache_salt": ""}, "cache_salt"),
    "long-salt-of-the-client": ({"cache_salt": "x" * 2000}, "cache_salt"),
    "functions": ({"functions": [{"name": "f"}]}, "functions"),
    "a-forced-tool": ({"tool_choice": "required"}, "tool_choice"),
    "beam-search": ({"use_beam_search": True}, "use_beam_search"),
    "audio": ({"modalities": ["text", "audio"]}, "modalities"),
    "null-content-of-a-tool": ({"messages": [*USER, {"role": "tool", "content": None}]}, "messages[1].content"),
    "zero-tokens": ({"max_tokens": 0}, "max_tokens"),
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "json-format": ({"response_format": {"type": "json_object"}}, "response_format"),
    "role": ({"messages": [{"role": "god", "content": "x"}]}, "messages[0].role"),
    "message-field": ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
    "no-content": ({"messages": [*USER, {"role": "assistant"}]}, "messages[1].content"),
    "null-content": ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    "tool-calls": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
    ),
    "image-part": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "messages[0].content[0].type",
    ),
    "seed-too-large": ({"seed": 1 << 64}, "seed"),
    "seed-fraction": ({"seed": 0.5}, "seed"),
    "empty-stop": ({"stop": ["a", ""]}, "stop"),
    "long-stop": ({"stop": "x" * 2000}, "stop"),
    "many-stops": ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
    "top-k-minus-two": ({"top_k": -2}, "top_k"),
    "top-p-above-one": ({"top_p": 1.01}, "top_p"),
    "temperature-bool": ({"temperature": True}, "temperature"),
    "huge-priority": ({"headrace": {"priority": 1 << 40}}, "headrace.priority"),
    "negative-left": ({"headrace": {"left_ms": -1}}, "headrace.left_ms"),
    "long-id": ({"headrace": {"id": "x" * 200}}, "headrace.id"),
    "long-salt": ({"headrace": {"salt": "aa" * 200}}, "headrace.salt"),
}
PROMPTS: dict[str, Any] = {
    "mixed": [1, "a"],
    "strings-and-lists": ["a", [1]],
    "lists-too-deep": [[[1]]],
    "an-empty-one": ["a", ""],
    "an-empty-list": [[1], []],
    "a-boolean-inside": [[True]],
    "too-many": ["a"] * (MAX_TOTAL_CHOICES + 1),
    "booleans": [True],
    "fractions": [1.5],
    "empty": "",
    "empty-list": [],
    "null": None,
    "object": {},
}


@pytest.mark.parametrize("fields", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(fields: dict[str, Any]) -> None:
    assert read_chat(chat(**fields)).model == "m"


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat(chat(**fields))
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, param)
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_completion(completion(prompt=prompt))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]])],
    ids=["text", "ids", "texts", "lists-of-ids"],
)
def test_prompts_that_are_taken(prompt: Any, expected: list[Any]) -> None:
    assert read_completion(completion(prompt=prompt)).prompts == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {"best_of": 3, "n": 3},
        {"best_of": 1, "n": None, "suffix": ""},
        {"add_special_tokens": False},
    ],
    ids=["scoring", "best-of-n", "best-of-one", "no-special-tokens"],
)
def test_completions_that_are_taken(fields: dict[str, Any]) -> None:
    assert read_completion(completion(**fields)).prompts == ["p"]


COMPLETION_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "logprobs-true": ({"logprobs": True}, "logprobs"),
    "logprobs-many": ({"logprobs": 21}, "logprobs"),
    "logprobs-negative": ({"logprobs": -1}, "logprobs"),
    "nothing-at-all": ({"max_tokens": 0}, "max_tokens"),
    "more-choices-than-over-all-prompts": ({"n": 257}, "n"),
    "too-many-choices": ({"prompt": ["p"] * 200, "n": 2}, "prompt"),
    "some-least-of-none": ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    "chat-fields": ({"continue_final_message": True}, "continue_final_message"),
    "special-number": ({"add_special_tokens": 1}, "add_special_tokens"),
    "echo-number": ({"echo": 1}, "echo"),
    "top-logprobs": ({"top_logprobs": 1}, "top_logprobs"),
    "best-of": ({"best_of": 2}, "best_of"),
    "best-of-more-than-n": ({"best_of": 3, "n": 2}, "best_of"),
    "suffix": ({"suffix": "x"}, "suffix"),
    "best-of-as-a-truth": ({"best_of": True}, "best_of"),
    "parallel-tools-as-a-number": ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
}


@pytest.mark.parametrize(("fields", "param"), COMPLETION_REFUSED.values(), ids=COMPLETION_REFUSED)
def test_completions_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_completion(completion(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "top"), [({}, None), ({"logprobs": False}, None), ({"logprobs": 0}, 0), ({"logprobs": 5}, 5)]
)
def test_logprobs_of_completions(fields: dict[str, Any], top: int | None) -> None:
    assert read_completion(completion(**fields)).top == top


@pytest.mark.parametrize(
    ("fields", "top"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 2}, 2)]
)
def test_logprobs_of_chats(fields: dict[str, Any], top: int | None) -> None:
    assert read_chat(chat(**fields)).top == top


def test_max_completion_tokens_wins() -> None:
    assert read_chat(chat(max_tokens=1, max_completion_tokens=2)).limit == ("max_completion_tokens", 2)
    assert read_chat(chat(max_tokens=1)).limit == ("max_tokens", 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# fmt: off
FIELDS = [
    "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids",
    "ignore_eos", "n", "stream", "stream_options", "headrace", "user", "logprobs", "tools", "echo",
    "chat_template_kwargs", "cache_salt",
    "top_logprobs", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens",
]
# fmt: on


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6))
@settings(max_examples=examples(400), deadline=None)
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    for read, base in ((read_chat, {"model": "m", "messages": USER}), (read_completion, {"model": "m", "prompt": "p"})):
        data = json.dumps({**base, **fields}).encode()
        try:
            read(data)
        except RequestError as error:
            assert error.reason is Reason.INVALID_REQUEST


@given(st.binary(max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat(data)
    assert caught.value.reason is Reason.INVALID_REQUEST
