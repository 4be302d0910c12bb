"""The OpenAPI document is true: what it allows is read, what it forbids is refused; nothing brings the engine down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headrace.testing.engine_process import EngineProcess
from headrace.testing.examples import examples
from headrace_engine.api.openapi import document
from headrace_engine.api.reading import read_chat, read_completion
from headrace_engine.api.schema import NEUTRAL
from headrace_wire.reasons import Reason, RequestError

DOCUMENT = json.loads(document())
READERS = {"ChatBody": read_chat, "CompletionBody": read_completion}
BASES: dict[str, dict[str, Any]] = {
    "ChatBody": {"model": "demo", "messages": [{"role": "user", "content": "hi"}]},
    "CompletionBody": {"model": "demo", "prompt": "TTFT"},
}
ROUTES = {"ChatBody": "/v1/chat/completions", "CompletionBody": "/v1/completions"}
# Rules over two fields, and of values that JSON schema has no words for.
BEYOND = (
    "min_tokens",
    "top_logprobs",
    "logprobs",
    "headrace.salt",
    "max_tokens",
    "stream_options",
    "continue_final_message",
    "best_of",
)

_NUMBERS = [0, 1, -1, 2, 20, 21, 64, 65, 0.5, -2.5, 1e300, 2**31, 2**63, 2**64]
_TEXTS = ["", "x", "5", "x" * 1025, "é"]
_LISTS: list[Any] = [[], ["a"], [1], [""], ["a"] * 17, [[1]]]
_OBJECTS: list[Any] = [{}, {"5": 1}, {"5": 101}, {"x": 1}, {"type": "text"}, {"include_usage": True}]
_HINTS: list[Any] = [{"salt": "0a"}, {"salt": "0"}, {"priority": 2**40}, {"id": "i", "left_ms": 1e13}]
edges = st.sampled_from([None, True, False, *_NUMBERS, *_TEXTS, *_LISTS, *_OBJECTS, *_HINTS])
json_values = edges | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


def fields_of(name: str) -> list[str]:
    return [*DOCUMENT["components"]["schemas"][name]["properties"], "unknown"]


def bodies(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with some fields replaced by anything."""
    changed = st.dictionaries(st.sampled_from(fields_of(name)), json_values, max_size=3)
    return changed.map(lambda fields: {**BASES[name], **fields})


def whole_numbers(value: Any) -> bool:
    """JSON schema takes 1.0 for an integer; the engine does not, where it stands for a count."""
    if isinstance(value, float):
        return value.is_integer()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(whole_numbers(one) for one in inner)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_the_document_and_the_reader_agree(name: str, data: st.DataObject) -> None:
    body = data.draw(bodies(name))
    allowed = validator(name).is_valid(body)
    try:
        READERS[name](json.dumps(body).encode())
    except RequestError as error:
        assert error.reason is Reason.INVALID_REQUEST
        assert not allowed or error.param in BEYOND or whole_numbers(body), (body, error.message)
    else:
        assert allowed, body


# What was found: bodies on which the document and the reader once disagreed.
FOUND: dict[str, tuple[str, dict[str, Any], bool]] = {
    "true-for-one": ("CompletionBody", {"best_of": True}, False),
    "one-for-true": ("ChatBody", {"parallel_tool_calls": 1}, False),
    "true-for-a-token": ("CompletionBody", {"prompt": [True]}, False),
    "a-fraction-for-a-count": ("ChatBody", {"n": 0.5}, False),
    "an-empty-prompt-among-others": ("CompletionBody", {"prompt": ["a", ""]}, False),
    "a-key-of-other-digits": ("ChatBody", {"logit_bias": {"²": 1}}, False),
    "null-everywhere": ("ChatBody", {"stop": None, "n": None, "headrace": None, "logit_bias": None}, True),
    "an-assistant-without-a-word": (
        "ChatBody",
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]},
        True,
    ),
    "as-many-of-the-best-as-there-are": ("CompletionBody", {"best_of": 2, "n": 2}, True),
    "a-user-without-a-word": ("ChatBody", {"messages": [{"role": "user", "content": None}]}, False),
}


@pytest.mark.parametrize(("name", "fields", "good"), FOUND.values(), ids=FOUND)
def test_the_document_and_the_reader_agree_on_what_was_found(name: str, fields: dict[str, Any], good: bool) -> None:
    body = {**BASES[name], **fields}
    assert validator(name).is_valid(body) is good
    if good:
        assert READERS[name](json.dumps(body).encode()).model == "demo"
        return
    with pytest.raises(RequestError):
        READERS[name](json.dumps(body).encode())


@pytest.mark.parametrize("name", READERS)
def test_every_field_is_described_and_required_ones_are_said(name: str) -> None:
    described = DOCUMENT["components"]["schemas"][name]
    assert described["additionalProperties"] is False
    assert set(described["required"]) == set(BASES[name])
    assert set(NEUTRAL) & set(described["properties"])


def test_the_document_is_closed() -> None:
    """Every reference leads somewhere."""
    Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"]["ChatBody"])
    references = {part.split('"')[0] for part in document().decode().split('"$ref":"#/components/schemas/')[1:]}
    assert references <= set(DOCUMENT["components"]["schemas"])


@pytest.fixture(scope="module")
def client(short_engine: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=short_engine.url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("name", ROUTES)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_is_the_engines_fault(client: httpx.Client, name: str, data: st.DataObject) -> None:
    """Statuses are those of the document; what is refused names a reason; the next request is answered."""
    body = {"max_tokens": 2, **data.draw(bodies(name))}
    body["headrace"] = None  # of another's making: an id in use or a time that runs out is no fuzz
    response = client.post(ROUTES[name], json=body)
    assert str(response.status_code) in DOCUMENT["paths"][ROUTES[name]]["post"]["responses"]
    assert response.status_code < 500, (body, response.text)
    if response.status_code != 200:
        Draft202012Validator(DOCUMENT["components"]["schemas"]["Error"]).validate(response.json())


@given(
    path=st.sampled_from([*DOCUMENT["paths"], "/", "/v1", "/docs"]), method=st.sampled_from(["GET", "PUT", "DELETE"])
)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_route_is_the_engines_fault(client: httpx.Client, path: str, method: str) -> None:
    response = client.request(method, path)
    documented = DOCUMENT["paths"].get(path, {}).get(method.lower())
    if documented is None:
        assert response.status_code in (404, 405)
    else:
        assert str(response.status_code) in documented["responses"]


def test_the_document_is_served_and_the_state_is_as_it_says(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == DOCUMENT
    validator("EngineState").validate(client.get("/headrace/v1/state").json())
    validator("TokenizerBundle").validate(client.get("/headrace/v1/tokenizer").json())


def test_a_reset_of_the_cache_is_a_new_epoch(client: httpx.Client) -> None:
    body = {"model": "demo", "prompt": [300 + index % 40 for index in range(90)], "max_tokens": 1}

    def cached() -> int:
        usage = client.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def state() -> dict[str, Any]:
        found: dict[str, Any] = client.get("/headrace/v1/state").json()
        return found

    assert [cached(), cached()] == [0, 64]
    before = state()
    answer = client.post("/headrace/v1/cache/reset")
    assert (answer.status_code, answer.json()) == (200, {"epoch": before["epoch"] + 1})
    after = state()
    assert after["epoch"] == before["epoch"] + 1
    assert after["cache_root"] != before["cache_root"]
    assert after["evictable"] == 0
    assert [cached(), cached()] == [0, 64]
