"""Words for bodies that cannot be read."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from headrace_wire.faults import allowed, not_json


class Part(msgspec.Struct):
    type: Literal["text"]


class Message(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: str | list[Part] | None = None


class Body(msgspec.Struct):
    messages: list[Message]
    choice: Literal["none", "auto"] | None = None
    level: Literal[1, 2] | str = 1
    kept: tuple[Part, ...] = ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("messages[0].role", "assistant or user"),
        ("messages[...].content[3].type", "text"),
        ("kept[1].type", "text"),
        ("choice", "auto or none"),
        ("level", ""),
        ("messages", ""),
        ("messages[0].nothing", ""),
        ("", ""),
    ],
)
def test_allowed_values_of_a_path(path: str, expected: str) -> None:
    assert allowed(Body, path) == expected


class Free(msgspec.Struct):
    any: dict[str, object]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "the body is empty", id="empty"),
        pytest.param(b" \n\t", "the body is empty", id="blank"),
        pytest.param(b'{"any": {"a": "\\ud800"}}', "half of a surrogate pair", id="surrogate"),
        pytest.param(b'{"any": {"a": "b}}', "a text is not closed", id="open text"),
        pytest.param(b'{"any": {"a": 1', "not valid JSON: Input data was truncated", id="cut"),
        pytest.param(b'{"any": {"a": ' + b"[" * 100_000, "nested too deeply", id="deep"),
        pytest.param(b'{"any" 1}', "not valid JSON: JSON is malformed", id="malformed"),
    ],
)
def test_why_bytes_are_no_json(data: bytes, words: str) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)) as caught:
        msgspec.json.decode(data, type=Free)
    assert words in not_json(caught.value, data)
