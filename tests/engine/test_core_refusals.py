"""Settings with which no engine can run are refused, by the command line and by the core, in words that help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_engine.config import EngineConfig
from headrace_engine.core import process
from headrace_engine.core.failure import StartError
from headrace_engine.main import parser, run_serve


def config(sequences: int, tokens: int) -> EngineConfig:
    return EngineConfig(path="nowhere", served_name="m", max_sequences=sequences, max_batch_tokens=tokens)


@pytest.mark.parametrize(
    ("sequences", "tokens", "refused"),
    [
        pytest.param(8, 7, True, id="a-step-too-small"),
        pytest.param(8, 8, False, id="just-enough"),
        pytest.param(1, 1, False, id="one-of-one"),
        pytest.param(600, 512, True, id="more-sequences-than-the-default-step"),
    ],
)
def test_a_step_holds_a_token_of_each_running_sequence(sequences: int, tokens: int, refused: bool) -> None:
    problem = config(sequences, tokens).contradiction
    assert bool(problem) is refused
    if refused:
        assert f"--max-batch-tokens is {tokens}" in problem
        assert f"--max-sequences, which is {sequences}" in problem


def test_the_command_line_refuses_before_it_looks_at_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "termination"
    monkeypatch.setenv("HEADRACE_TERMINATION_LOG", str(log))
    args = parser().parse_args(["serve", "/nowhere", "--max-sequences", "8", "--max-batch-tokens", "7"])
    assert run_serve(args) == 1
    said = json.loads(log.read_text())
    assert said["reason"] == "ConfigInvalid"
    assert "--max-batch-tokens is 7, below --max-sequences, which is 8" in said["message"]
    assert said["message"] in caplog.text


def test_the_core_refuses_before_torch_is_loaded() -> None:
    link: Any = None  # nothing is sent
    with pytest.raises(StartError, match="--max-batch-tokens is 7") as caught:
        process._serve(config(8, 7), link)
    assert caught.value.reason == "ConfigInvalid"
