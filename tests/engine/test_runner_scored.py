"""Logprobs of a prompt's own tokens: those of the model, whatever the chunks, the company, the lag or the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace_engine.attention.cpu import CpuAttention
from headrace_engine.core.scheduler import MAX_SCORED
from headrace_engine.models.config import read_config
from headrace_engine.models.random import write_checkpoint
from headrace_engine.models.registry import load
from headrace_engine.runner import kv
from headrace_engine.runner.driven import Deferred, Driven
from headrace_engine.runner.runner import TorchRunner
from headrace_wire.protocol import Sampling, TokenLogprob

CONTEXT = 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "dtype": "float32",
}
TOP = 3
SCORED = Sampling(temperature=0.0, prompt_logprobs=TOP)
PLAIN = Sampling(temperature=0.0)
PROMPT = [(i * 37 + i * i) % 1000 for i in range(150)]


class Model:
    """One tiny checkpoint, here and in transformers."""

    def __init__(self, folder: Path):
        write_checkpoint(folder, CONFIG, seed=4)
        self._config = read_config(folder)
        self._model = load(folder, self._config, torch.float32)
        self._oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def driven(self, *, lag: int = 0, pages: int = 64, **limits: Any) -> Driven:
        attention = CpuAttention(torch.float32)
        shape = self._config.shape
        spec = kv.spec(shape, pages, 4, attention.layout)
        runner = TorchRunner(self._model, attention, spec, kv.allocate(shape, pages, attention))
        return Driven(runner=Deferred(runner, lag), context=CONTEXT, **limits)

    @torch.inference_mode()
    def expected(self, tokens: list[int]) -> torch.Tensor:
        """Natural logarithms, [tokens - 1, vocab]: row i is of the token after token i."""
        return torch.Tensor(self._oracle(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    yield Model(tmp_path_factory.mktemp("tiny"))


def scored(driven: Driven, name: str) -> list[TokenLogprob]:
    """All come with the first tokens."""
    deltas = driven.deltas[name]
    assert not any(delta.prompt_logprobs for delta in deltas[1:])
    return deltas[0].prompt_logprobs


def check(found: list[TokenLogprob], expected: torch.Tensor, tokens: list[int]) -> None:
    assert len(found) == len(tokens) - 1
    for i, entry in enumerate(found):
        assert entry.logprob == pytest.approx(float(expected[i, tokens[i + 1]]), abs=1e-3)
        assert [logprob for _, logprob in entry.top] == pytest.approx(expected[i].topk(TOP).values.tolist(), abs=1e-3)


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
@pytest.mark.parametrize("budget", [1, 7, 256], ids=lambda budget: f"budget-{budget}")
def test_they_are_the_models(model: Model, lag: int, budget: int) -> None:
    driven = model.driven(lag=lag, budget=budget)
    driven.submit("a", PROMPT, 5, sampling=SCORED)
    driven.run()
    check(scored(driven, "a"), model.expected(PROMPT), PROMPT)
    assert len(driven.output("a")) == 5


def test_company_changes_neither_side(model: Model) -> None:
    """Rows with and without, of several lengths, in one batch: each gets its own, tokens are as alone."""
    alone = model.driven()
    alone.submit("plain", PROMPT[:90], 8, sampling=PLAIN)
    alone.run()
    driven = model.driven()
    driven.submit("plain", PROMPT[:90], 8, sampling=PLAIN)
    lengths = (1, 2, 64, 65, 150)
    for length in lengths:
        driven.submit(f"scored-{length}", PROMPT[:length], 8, sampling=SCORED)
    driven.run()
    assert driven.output("plain") == alone.output("plain")
    for length in lengths:
        check(scored(driven, f"scored-{length}"), model.expected(PROMPT[:length]), PROMPT[:length])
    assert scored(driven, "plain") == []


def test_a_cached_prompt_is_computed_again_and_a_scored_one_is_cached(model: Model) -> None:
    driven = model.driven()
    for name, sampling in (("first", PLAIN), ("again", SCORED), ("last", PLAIN)):
        driven.submit(name, PROMPT, 3, sampling=sampling)
        driven.run()
    assert [driven.end(name).cached for name in ("first", "again", "last")] == [0, 0, 128]
    check(scored(driven, "again"), model.expected(PROMPT), PROMPT)
    assert driven.output("first") == driven.output("again") == driven.output("last")


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
def test_preemption_neither_repeats_nor_loses(model: Model, lag: int) -> None:
    driven = model.driven(pages=6, lag=lag, budget=100)
    for name in ("a", "b", "c"):
        driven.submit(name, PROMPT[:100], 80, sampling=SCORED)
    driven.run()
    assert driven.scheduler.preemptions > 0
    for name in ("a", "b", "c"):
        check(scored(driven, name), model.expected(PROMPT[:100]), PROMPT[:100])


def test_a_step_reports_on_a_bounded_number_of_tokens(model: Model) -> None:
    driven = model.driven(budget=256)
    for name in ("a", "b"):
        driven.submit(name, PROMPT, 2, sampling=SCORED)
    driven.submit("plain", PROMPT[:100], 2, sampling=PLAIN)
    driven.run()
    assert max(sum(s.count for s in plan.steps if s.row in (1, 2)) for plan in driven.plans) <= MAX_SCORED + 1
    assert len(driven.output("plain")) == 2
