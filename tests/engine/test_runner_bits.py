"""In bfloat16 a request's tokens and logprobs are the same to the bit, whatever is computed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headrace_engine.demo
from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.models.config import read_config
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.driven import Driven
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling

FOLDER = Path(headrace_engine.demo.__file__).parent / "model"
LENGTHS = {"short": 50, "of-three-pages": 150, "of-five": 270, "of-six": 340, "of-eight": 465, "of-twelve": 700}
OUTPUT = 60
CONTEXT = 1024
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "two-at-a-time": {"sequences": 2},
    "in-small-chunks": {"budget": 45},
    "preempted": {"pages": 20, "budget": 200},
}
Said = list[tuple[int, float]]


class Demo:
    """The demo model in bfloat16; each run has KV of its own."""

    def __init__(self) -> None:
        self._config = read_config(FOLDER)
        self._model = load(FOLDER, self._config, torch.bfloat16)

    def driven(self, pages: int = 96, **limits: Any) -> Driven:
        attention, shape = CpuAttention(torch.bfloat16, None), self._config.shape
        spec = kv.spec(shape, pages, 2, attention.layout)
        runner = TorchRunner(self._model, attention, spec, kv.allocate(shape, pages, attention))
        return Driven(runner=runner, context=CONTEXT, **limits)


def said(driven: Driven, names: list[str]) -> dict[str, Said]:
    """Tokens and their logprobs."""
    for name in names:
        prompt = [(len(name) * 37 + i * i * 11) % 990 for i in range(LENGTHS[name])]
        driven.submit(name, prompt, OUTPUT, sampling=Sampling(temperature=0.0, logprobs=1))
    driven.run()
    found = {}
    for name in names:
        deltas = driven.deltas[name]
        tokens = [token for delta in deltas for token in delta.tokens]
        logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs]
        found[name] = list(zip(tokens, logprobs, strict=True))
        assert driven.end(name).finish is not None and tokens
    return found


@pytest.fixture(scope="module")
def demo() -> Demo:
    return Demo()


@pytest.fixture(scope="module")
def alone(demo: Demo) -> dict[str, Said]:
    return {name: said(demo.driven(), [name])[name] for name in LENGTHS}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_company_chunks_and_preemption_change_no_bit(demo: Demo, alone: dict[str, Said], way: dict[str, Any]) -> None:
    driven = demo.driven(**way)
    assert said(driven, list(LENGTHS)) == alone
    assert (driven.scheduler.preemptions > 0) is ("pages" in way)


def test_a_prefix_that_is_found_changes_no_bit(demo: Demo, alone: dict[str, Said]) -> None:
    driven = demo.driven()
    said(driven, list(LENGTHS))
    driven.deltas.clear()
    assert said(driven, list(reversed(LENGTHS))) == alone
    assert driven.end("of-five").cached == 256
