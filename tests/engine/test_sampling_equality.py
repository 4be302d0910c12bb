"""All of sampling over a real runner: alone, in a batch, in another order, in chunks, preempted, at any lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.models.config import read_config
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.driven import Deferred, Driven
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling

CONTEXT = 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "dtype": "float32",
}
STOP = 17
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "greedy-penalised": Sampling(temperature=0.0, presence=0.8, frequency=0.3, repetition=1.2),
    "min-p": Sampling(temperature=1.5, min_p=0.05, seed=2**64 - 1),
    "penalised": Sampling(temperature=1.0, presence=1.5, frequency=0.5, repetition=1.1, seed=5),
    "biased": Sampling(temperature=0.8, top_k=50, bias=((3, 5.0), (9, -100.0)), seed=6),
    "late-stop": Sampling(temperature=1.0, min_tokens=20, bias=((STOP, 9.0),), seed=8, logprobs=3),
}
COUNT = 80


class Model:
    """One tiny checkpoint; each runner has KV of its own."""

    def __init__(self, folder: Path, dtype: torch.dtype, **config: Any):
        write_checkpoint(folder, CONFIG | config, seed=4)
        self._dtype = dtype
        self._config = read_config(folder)
        self._model = load(folder, self._config, dtype)

    def driven(self, *, lag: int = 0, pages: int = 64, **limits: Any) -> Driven:
        attention = CpuAttention(self._dtype, self._config.window)
        shape = self._config.shape
        spec = kv.spec(shape, pages, self._dtype.itemsize, attention.layout)
        runner = TorchRunner(self._model, attention, spec, kv.allocate(shape, pages, attention))
        return Driven(runner=Deferred(runner, lag), context=CONTEXT, **limits)


MISTRAL = {"architectures": ["MistralForCausalLM"], "sliding_window": 70}
MODELS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "fp32": (torch.float32, {}),
    "bf16": (torch.bfloat16, {}),  # in which near-ties are common: equal to the bit or not at all
    "bf16-window": (torch.bfloat16, MISTRAL),
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    dtype, config = request.param
    return Model(tmp_path_factory.mktemp("tiny"), dtype, **config)


def prompt(name: str) -> list[int]:
    return [(len(name) * 37 + i * 11) % 1000 for i in range(60 + len(name))]


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[str, list[int]]:
    outputs = {}
    for name in SAMPLINGS:
        driven = model.driven()
        submit(driven, name)
        driven.run()
        outputs[name] = driven.output(name)
    return outputs


def submit(driven: Driven, name: str, **more: Any) -> None:
    driven.submit(name, prompt(name), COUNT, sampling=SAMPLINGS[name], stop_ids=(STOP,), **more)


def outputs(driven: Driven, names: list[str]) -> dict[str, list[int]]:
    for name in names:
        submit(driven, name)
    driven.run()
    return {name: driven.output(name) for name in SAMPLINGS}


def test_they_differ(alone: dict[str, list[int]]) -> None:
    assert len({tuple(output) for output in alone.values()}) == len(SAMPLINGS)
    assert 9 not in alone["biased"]
    assert len(alone["late-stop"]) == 21
    assert alone["late-stop"][-1] == STOP


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
@pytest.mark.parametrize("budget", [9, 256], ids=lambda budget: f"budget-{budget}")
def test_together(model: Model, alone: dict[str, list[int]], lag: int, budget: int) -> None:
    assert outputs(model.driven(lag=lag, budget=budget), list(SAMPLINGS)) == alone


def test_in_another_order(model: Model, alone: dict[str, list[int]]) -> None:
    assert outputs(model.driven(sequences=4), list(reversed(SAMPLINGS))) == alone


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
def test_preempted(model: Model, alone: dict[str, list[int]], lag: int) -> None:
    driven = model.driven(pages=8, lag=lag, budget=100)
    assert outputs(driven, list(SAMPLINGS)) == alone
    assert driven.scheduler.preemptions > 0


def test_after_a_prefix_hit(model: Model, alone: dict[str, list[int]]) -> None:
    driven = model.driven()
    outputs(driven, list(SAMPLINGS))
    driven.deltas.clear()
    assert outputs(driven, list(SAMPLINGS)) == alone
    assert all(driven.end(name).cached == 64 for name in SAMPLINGS if len(prompt(name)) > 64)


@pytest.mark.parametrize("lag", [0, 1], ids=lambda lag: f"lag-{lag}")
def test_one_logprob_a_token(model: Model, alone: dict[str, list[int]], lag: int) -> None:
    driven = model.driven(lag=lag, pages=8, budget=100)
    outputs(driven, list(SAMPLINGS))
    for delta in driven.deltas["late-stop"]:
        assert len(delta.logprobs) == len(delta.tokens)
        for entry in delta.logprobs:
            assert len(entry.top) == 3
            assert entry.logprob <= entry.top[0][1] <= 0
    assert all(not delta.logprobs for delta in driven.deltas["greedy"])
