"""Each family against transformers on random checkpoints, and against itself.

That is: alone, in a batch, in chunks, after a prefix hit, after a preemption.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace_engine.attention.base import Attention
from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.attention.reference import ReferenceAttention
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.plan import NewRow, RowStep
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.models.config import read_config
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.rows import Row, build
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling, Submit

VOCAB = 211
CONTEXT = 512
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0}
QWEN3 = BASE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1e6}
MISTRAL = BASE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1e6, "hidden_size": 64}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": LLAMA | {"tie_word_embeddings": True},
    "llama-multi-head": LLAMA | {"num_key_value_heads": 4},
    "llama-biased": LLAMA | {"attention_bias": True},
    "llama-mlp-biased": LLAMA | {"mlp_bias": True},
    "llama3-rope": LLAMA | {"rope_scaling": LLAMA3_ROPE},
    "llama-rope-parameters": LLAMA | {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0}},
    "llama-linear-rope": LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama-null-defaults": LLAMA | {"num_attention_heads": 3, "num_key_value_heads": None, "head_dim": None},
    "mistral": MISTRAL,
    "mistral-window": MISTRAL | {"sliding_window": 50},
    "mistral-window-as-long-as-the-context": MISTRAL | {"sliding_window": CONTEXT, "tie_word_embeddings": True},
    "qwen2": QWEN2,
    "qwen2-tied": QWEN2 | {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "qwen3": QWEN3,
    "qwen3-wide-heads": QWEN3 | {"head_dim": 32, "tie_word_embeddings": True},
}
NEAR_TIE = 1e-4  # logits closer than this may be ordered either way


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
    return tokens


class Served:
    """A checkpoint in this engine and in transformers."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32):
        self.config = read_config(folder)
        self.model: Decoder = load(folder, self.config, dtype)
        self.oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
        self.dtype = dtype
        self.alone: dict[tuple[tuple[int, ...], Sampling, int], list[int]] = {}

    def runner(self, pages: int = 64, attention: Attention | None = None) -> TorchRunner:
        attention = attention or CpuAttention(self.dtype, self.config.window)
        spec = kv.spec(self.config.shape, pages, self.dtype.itemsize, attention.layout)
        return TorchRunner(self.model, attention, spec, kv.allocate(self.config.shape, pages, attention))

    def logits(self, tokens: list[int], attention: Attention | None = None) -> torch.Tensor:
        """Of every position, computed in chunks of 1, 7 and the rest."""
        attention = attention or CpuAttention(self.dtype, self.config.window)
        layers = kv.allocate(self.config.shape, 16, attention)
        pages = list(range(1, 12))
        new = NewRow(row=1, tokens=array("i", tokens).tobytes(), prompt=len(tokens), pages=pages, sampling=Sampling())
        rows = {1: Row(new)}
        parts = []
        bounds = sorted({0, min(1, len(tokens)), min(8, len(tokens)), len(tokens)})
        for first, last in pairwise(bounds):
            batch = build([RowStep(row=1, start=first, count=last - first, sample=True)], rows)
            meta = replace(batch.meta, logit_rows=torch.arange(last - first))
            with torch.inference_mode():
                parts.append(self.model(batch.tokens, batch.positions, meta, attention, layers))
        return torch.cat(parts)


@pytest.fixture(scope="module", params=CONFIGS, ids=list(CONFIGS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    write_checkpoint(folder, CONFIGS[request.param], seed=7)
    yield Served(folder)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "mistral-window"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    write_checkpoint(folder, CONFIGS[request.param], seed=11)
    yield Served(folder)


def oracle_logits(served: Served, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = served.oracle(torch.tensor([tokens])).logits[0].float()
    return logits


@pytest.mark.parametrize("length", [1, 64, 200])
def test_logits_equal_those_of_transformers(served: Served, length: int) -> None:
    tokens = prompt(length, seed=length)
    torch.testing.assert_close(served.logits(tokens), oracle_logits(served, tokens), atol=2e-4, rtol=1e-3)


def test_bfloat16_logits_are_near_those_of_transformers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA, seed=3)
    served = Served(tmp_path, torch.bfloat16)
    tokens = prompt(150, seed=5)
    ours, theirs = served.logits(tokens), oracle_logits(served, tokens)
    exact = oracle_logits(Served(tmp_path), tokens)
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean() + 1e-3
    torch.testing.assert_close(ours, theirs, atol=0.25, rtol=0.1)


def test_the_reference_backend_gives_the_same(family: Served) -> None:
    tokens = prompt(150, seed=1)
    reference = family.logits(tokens, ReferenceAttention(torch.float32, family.config.window))
    torch.testing.assert_close(family.logits(tokens), reference, atol=1e-4, rtol=1e-3)


# -- greedy output, however it is computed


def assert_greedy(served: Served, tokens: list[int], output: list[int]) -> None:
    """Each output token is the likeliest of transformers' logits, or as near as makes no difference."""
    logits = oracle_logits(served, tokens + output)[len(tokens) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1)
    assert (logits.max(1).values - chosen).max() < NEAR_TIE


class Engine:
    """A scheduler over a real runner."""

    def __init__(self, served: Served, *, pages: int = 64, sequences: int = 8, budget: int = 4096):
        shape = served.config.shape
        limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=CONTEXT, vocab=shape.vocab)
        self.scheduler = Scheduler(limits, BlockPool(pages), "00")
        self.runner = served.runner(pages)
        self.output: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def submit(self, name: str, tokens: list[int], sampling: Sampling, priority: int = 0, count: int = 64) -> None:
        self.output[name] = []
        submit = Submit(
            id=name, tokens=array("i", tokens).tobytes(), sampling=sampling, max_tokens=count, priority=priority
        )
        assert self.scheduler.submit(submit, 0.0) == []

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        self.runner.launch(plan)
        for delta in self.scheduler.apply(self.runner.collect()):
            assert delta.error is None
            self.output[delta.id] += delta.tokens
            self.cached[delta.id] = delta.cached

    def run(self) -> None:
        while self.scheduler.busy:
            self.step()


GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=1.0, top_p=0.9, top_k=40, seed=2**63 + 12345)
PROMPTS = [prompt(n, seed=n) for n in (5, 70, 129, 64)]


def alone(served: Served, tokens: list[int], sampling: Sampling, count: int = 64) -> list[int]:
    """The output of a request that has the engine for itself."""
    known = served.alone.get((tuple(tokens), sampling, count))
    if known is None:
        engine = Engine(served)
        engine.submit("a", tokens, sampling, count=count)
        engine.run()
        known = served.alone[tuple(tokens), sampling, count] = engine.output["a"]
    return known


@pytest.mark.parametrize("tokens", PROMPTS, ids=lambda tokens: f"prompt-{len(tokens)}")
def test_greedy_output_is_that_of_transformers(served: Served, tokens: list[int]) -> None:
    output = alone(served, tokens, GREEDY)
    assert len(output) == 64
    assert_greedy(served, tokens, output)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
class TestEqualHoweverComputed:
    """Random weights give wide margins for these seeds, so equality is exact."""

    @pytest.mark.parametrize("budget", [8, 15, 64, 4096], ids=lambda n: f"chunk-{n}")
    def test_in_a_batch_and_in_chunks(self, family: Served, sampling: Sampling, budget: int) -> None:
        engine = Engine(family, budget=budget)
        for i, tokens in enumerate(PROMPTS):
            engine.submit(str(i), tokens, sampling)
        engine.run()
        for i, tokens in enumerate(PROMPTS):
            assert engine.output[str(i)] == alone(family, tokens, sampling)

    @pytest.mark.parametrize("budget", [1, 7, 64], ids=lambda n: f"chunk-{n}")
    def test_one_in_small_chunks(self, family: Served, sampling: Sampling, budget: int) -> None:
        engine = Engine(family, budget=budget, sequences=1)
        engine.submit("a", PROMPTS[2], sampling)
        engine.run()
        assert engine.output["a"] == alone(family, PROMPTS[2], sampling)

    def test_in_another_order(self, family: Served, sampling: Sampling) -> None:
        engine = Engine(family)
        for i in (2, 0, 3, 1):
            engine.submit(str(i), PROMPTS[i], sampling)
        engine.run()
        for i, tokens in enumerate(PROMPTS):
            assert engine.output[str(i)] == alone(family, tokens, sampling)

    def test_after_a_prefix_hit(self, family: Served, sampling: Sampling) -> None:
        engine = Engine(family)
        tokens = PROMPTS[2]
        for name in ("cold", "warm"):
            engine.submit(name, tokens, sampling)
            engine.run()
        assert engine.cached == {"cold": 0, "warm": 128}
        assert engine.output["warm"] == engine.output["cold"] == alone(family, tokens, sampling)

    def test_after_a_preemption(self, family: Served, sampling: Sampling) -> None:
        engine = Engine(family, sequences=1)
        engine.submit("low", PROMPTS[1], sampling)
        for _ in range(20):
            engine.step()
        engine.submit("high", PROMPTS[0], sampling, priority=1)
        engine.run()
        assert engine.scheduler.preemptions == 1
        assert engine.output["low"] == alone(family, PROMPTS[1], sampling)
        assert engine.output["high"] == alone(family, PROMPTS[0], sampling)

    def test_on_scattered_pages(self, family: Served, sampling: Sampling) -> None:
        engine = Engine(family)
        for i in range(4):
            engine.submit(str(i), prompt(60, seed=i), sampling, count=150)
        engine.run()
        for i in range(4):
            assert engine.output[str(i)] == alone(family, prompt(60, seed=i), sampling, count=150)
