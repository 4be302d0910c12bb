"""Faults inside a step: the row at fault ends alone, by name; the rest get the tokens they would have got."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_engine.attention.base import Attention, AttentionMeta, LayerKv
from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.core.plan import NewRow, RowStep, StepPlan
from headrace_engine.models.config import read_config
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling
from headrace_wire.reasons import Reason

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "dtype": "float32",
}
POISON = 49  # a token that the faulty model cannot stand


class FaultyDecoder(Decoder):
    """Raises `fault` for any step that holds the poisonous token, and once for the step numbered `once`."""

    fault: Exception = RuntimeError("injected")
    once: int = 0
    most: int = 1 << 30  # tokens of a step for which there is memory
    calls: int = 0

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        attention: Attention,
        kv: Any,
    ) -> torch.Tensor:
        self.calls += 1
        if (tokens == POISON).any() or self.calls == self.once:
            raise self.fault
        if len(tokens) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return super().__call__(tokens, positions, meta, attention, kv)


@pytest.fixture
def runner(tmp_path: Path) -> TorchRunner:
    write_checkpoint(tmp_path, CONFIG, seed=2)
    config = read_config(tmp_path)
    model = load(tmp_path, config, torch.float32)
    model.__class__ = FaultyDecoder
    attention = CpuAttention(torch.float32)
    spec = kv.spec(config.shape, 16, 4, attention.layout)
    layers: list[LayerKv] = kv.allocate(config.shape, 16, attention)
    return TorchRunner(model, attention, spec, layers)


def first_step(prompts: list[list[int]]) -> StepPlan:
    """All prompts whole, in one step."""
    new = [
        NewRow(row=i, tokens=array("i", p).tobytes(), prompt=len(p), pages=[i], sampling=Sampling(temperature=0.0))
        for i, p in enumerate(prompts, start=1)
    ]
    steps = [RowStep(row=i, start=0, count=len(p), sample=True) for i, p in enumerate(prompts, start=1)]
    return StepPlan(number=1, new=new, steps=steps, drop=[])


GOOD = [[3, 4, 5], [6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(RuntimeError("injected"), Reason.INTERNAL, id="error"),
        pytest.param(IndexError("index out of range"), Reason.INTERNAL, id="index"),
        pytest.param(MemoryError(), Reason.OUT_OF_MEMORY, id="memory"),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            Reason.OUT_OF_MEMORY,
            id="torch-memory",
        ),
    ],
)
def test_the_row_at_fault_ends_alone(runner: TorchRunner, fault: Exception, reason: Reason) -> None:
    runner.launch(first_step(GOOD))
    want = runner.collect().tokens
    runner._model.fault = fault  # type: ignore[attr-defined]
    runner.launch(first_step([*GOOD, [1, POISON]]))
    result = runner.collect()
    assert result.failed == {4: reason}
    assert result.tokens == want


def test_a_passing_fault_costs_nobody_anything(runner: TorchRunner) -> None:
    runner.launch(first_step(GOOD))
    want = runner.collect().tokens
    runner._model.once = 2  # type: ignore[attr-defined]
    runner.launch(first_step(GOOD))
    result = runner.collect()
    assert (result.tokens, result.failed) == (want, {})


def test_an_allocation_that_fails_costs_the_largest_request_alone(runner: TorchRunner) -> None:
    runner.launch(first_step(GOOD))
    want = runner.collect().tokens
    runner._model.most = 6  # type: ignore[attr-defined]
    runner.launch(first_step([*GOOD, [5] * 7]))
    result = runner.collect()
    assert result.failed == {4: Reason.OUT_OF_MEMORY}
    assert result.tokens == want


def test_a_dropped_row_is_forgotten_even_if_it_was_never_known(runner: TorchRunner) -> None:
    runner.launch(first_step(GOOD))
    runner.collect()
    runner.launch(StepPlan(number=2, new=[], steps=[RowStep(row=1, start=3, count=1, sample=True)], drop=[2, 77]))
    assert set(runner.collect().tokens) == {1}
    assert set(runner._rows) == {1, 3}


def test_a_step_cannot_be_launched_over_another(runner: TorchRunner) -> None:
    runner.launch(first_step(GOOD))
    with pytest.raises(RuntimeError, match="not collected"):
        runner.launch(first_step(GOOD))
