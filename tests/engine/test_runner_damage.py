"""A model with weights that are no numbers: who meets them ends with an error, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.models.config import read_config
from headrace_engine.models.loader import SINGLE
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.driven import Driven
from headrace_engine.runner.fake import VOCAB
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling
from headrace_wire.reasons import Reason

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
POISON = VOCAB - 1
LENGTHS = {"short": 30, "two-pages": 100, "long": 250}
PAGES = 16  # the pages of one are soon another's


class Damaged:
    """A tiny model, one of whose tensors has one row of `value`."""

    def __init__(self, folder: Path, dtype: torch.dtype, tensor: str, value: float):
        write_checkpoint(folder, CONFIG | {"dtype": str(dtype).removeprefix("torch.")}, seed=4)
        tensors = load_file(folder / SINGLE)
        tensors[tensor][POISON] = value
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
        config = read_config(folder)
        attention = CpuAttention(dtype)
        spec = kv.spec(config.shape, PAGES, dtype.itemsize, attention.layout)
        self.layers = kv.allocate(config.shape, PAGES, attention)
        self.runner = TorchRunner(load(folder, config, dtype), attention, spec, self.layers)

    def answers(self, *poisoned: str, **sampling: Any) -> Driven:
        """The good prompts, beside these poisoned ones."""
        driven = Driven(runner=self.runner, context=1024, budget=128)
        drop = list(self.runner._rows)
        driven.scheduler.forget(drop)
        how = Sampling(**{"temperature": 0.0, "logprobs": 0} | sampling)
        for at, (name, length) in enumerate(LENGTHS.items()):
            driven.submit(name, [3 + (at * 37 + i * i * 11) % (POISON - 3) for i in range(length)], 20, sampling=how)
        for name in poisoned:
            driven.submit(name, [5] * 150 + [POISON] + [6] * 50, 20, sampling=how)
        driven.run()
        return driven


def said(driven: Driven) -> dict[str, list[tuple[int, float]]]:
    """Tokens and logprobs of the good ones."""
    found = {}
    for name in LENGTHS:
        assert driven.end(name).finish is not None
        entries = [entry.logprob for delta in driven.deltas[name] for entry in delta.logprobs]
        found[name] = list(zip(driven.output(name), entries, strict=True))
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "infinite"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_a_token_that_is_no_number_ends_its_own_requests_alone(
    tmp_path: Path, dtype: torch.dtype, value: float
) -> None:
    model = Damaged(tmp_path, dtype, "model.embed_tokens.weight", value)
    before = said(model.answers())
    beside = model.answers("bad", "worse")
    assert [beside.end(name).error for name in ("bad", "worse")] == [Reason.INTERNAL] * 2
    after = said(model.answers())
    if dtype is torch.bfloat16:  # where company changes no bit
        assert said(beside) == after == before
    assert {name: [token for token, _ in entries] for name, entries in after.items()} == {
        name: [token for token, _ in entries] for name, entries in before.items()
    }
    assert all(bool(layer.k.isfinite().all() and layer.v.isfinite().all()) for layer in model.layers)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 3, "top_p": 0.9}, {"presence": 1.0}]
)
def test_logits_that_are_no_numbers_end_a_request(tmp_path: Path, sampling: dict[str, Any]) -> None:
    driven = Damaged(tmp_path, torch.bfloat16, "lm_head.weight", float("nan")).answers(**sampling)
    assert {driven.end(name).error for name in LENGTHS} == {Reason.INTERNAL}
    assert not any(driven.output(name) for name in LENGTHS)
