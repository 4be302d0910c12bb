"""The start-up report: what it says adds up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_engine.api.server import arithmetic, full_length_sequences, steps_in_words
from headrace_engine.core.messages import Ready
from headrace_wire.protocol import ModelInfo, StepTimes
from headrace_wire.shape import ModelShape

SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    layers=1,
    hidden=8,
    intermediate=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    vocab=100,
    max_positions=2048,
)


def ready(pages: int, context: int, **more: Any) -> Ready:
    model = ModelInfo(name="m", max_tokens=context, max_sequences=16)
    return Ready(model=model, shape=SHAPE, memory={}, kv_groups=[], total_pages=pages, cache_root="", **more)


@pytest.mark.parametrize(
    ("pages", "context", "sequences"),
    [
        pytest.param(32, 100, 16, id="two-pages-each"),
        pytest.param(33, 100, 16, id="half-a-sequence-is-none"),
        pytest.param(32, 64, 32, id="exactly-a-page"),
        pytest.param(32, 65, 16, id="a-token-more"),
        pytest.param(16, 2, 16, id="the-least-context"),
        pytest.param(512, 2048, 16, id="whole-context"),
    ],
)
def test_sequences_of_full_length_take_whole_pages(pages: int, context: int, sequences: int) -> None:
    report = ready(pages, context)
    assert full_length_sequences(report) == sequences
    assert f"{pages * 64} tokens, {sequences} sequences at the full {context};" in arithmetic(report)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        pytest.param(None, "could not be told at the start", id="not-known"),
        pytest.param(
            StepTimes(fixed_s=0.002, sequence_s=0.0002, prefill_token_s=4e-5, steps=30),
            "a step takes 2 ms, 200 us for each sequence that decodes, 40 us for each prompt token; by 30 steps",
            id="known",
        ),
    ],
)
def test_what_a_step_takes_is_said_or_that_it_is_not_known(times: StepTimes | None, words: str) -> None:
    assert words in steps_in_words(times)
