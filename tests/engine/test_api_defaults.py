"""A model's own sampling defaults: read strictly, used where a body says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_engine.api.defaults import FILE, NO_DEFAULTS, Defaults, read_defaults
from headrace_engine.api.reading import read_chat
from headrace_engine.api.submit import Limits, sampling_of
from headrace_engine.core.failure import StartError
from headrace_engine.fetch.fetch import DEMO
from headrace_wire.protocol import Sampling


def write(folder: Path, config: Any) -> Path:
    (folder / FILE).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def sampled(fields: dict[str, Any], defaults: Defaults) -> Sampling:
    body = read_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode())
    return sampling_of(body, Limits(100, 640, 50), defaults, 1)


def test_no_file_asks_for_nothing(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == NO_DEFAULTS


def test_fields(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "min_p": None}
    found = read_defaults(write(tmp_path, {**config, "do_sample": True, "eos_token_id": [1, 2], "max_length": 20}))
    assert found == Defaults(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": "0.9"}, "top_p"),
        ({"top_k": True}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"do_sample": "false"}, "do_sample"),
        ([], "JSON object"),
        ("{", "cannot be read"),
    ],
    ids=["negative", "text", "bool", "zero", "flag-as-text", "list", "broken"],
)
def test_what_no_request_could_ask_for_is_refused_at_start(tmp_path: Path, config: Any, field: str) -> None:
    with pytest.raises(StartError, match=field) as caught:
        read_defaults(write(tmp_path, config))
    assert caught.value.file == FILE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0.6, 0.95, 20, 1.05)),
        ({"temperature": 0, "top_p": 1, "top_k": 0, "repetition_penalty": 1}, (0.0, 1.0, 0, 1.0)),
        ({"temperature": None, "top_k": -1}, (0.6, 0.95, 0, 1.05)),
    ],
    ids=["left-out", "said", "null"],
)
def test_a_body_wins(fields: dict[str, Any], expected: tuple[float, ...]) -> None:
    found = sampled(fields, Defaults(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05))
    assert (found.temperature, found.top_p, found.top_k, found.repetition) == expected


@pytest.mark.parametrize(
    ("config", "fields", "temperature"),
    [
        ({"do_sample": False}, {}, 0.0),
        ({"do_sample": False, "temperature": 0.6}, {"seed": 7, "repetition_penalty": 1.2}, 0.0),
        ({"do_sample": False}, {"temperature": 0.7}, 0.7),
        ({"do_sample": False}, {"top_p": 0.9}, 1.0),
        ({"do_sample": False, "temperature": 0.6}, {"top_k": 5}, 0.6),
        ({"do_sample": False}, {"min_p": 0.1}, 1.0),
        ({"do_sample": False}, {"temperature": None, "top_p": None}, 0.0),
        ({"do_sample": True}, {}, 1.0),
        ({"do_sample": None}, {}, 1.0),
        ({}, {}, 1.0),
    ],
    ids=["nothing", "no-cut", "temperature", "top-p", "top-k", "min-p", "nulls", "sampled", "null-flag", "no-flag"],
)
def test_a_model_that_does_not_sample_is_greedy_unless_a_body_asks(
    config: dict[str, Any], fields: dict[str, Any], temperature: float, tmp_path: Path
) -> None:
    assert sampled(fields, read_defaults(write(tmp_path, config))).temperature == temperature


def test_the_demo_model_is_greedy() -> None:
    assert sampled({}, read_defaults(DEMO)).temperature == 0.0
