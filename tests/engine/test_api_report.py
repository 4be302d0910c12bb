"""The start-up report: what it says adds up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_engine.api.server import arithmetic, full_length_sequences
from headrace_engine.core.messages import Ready
from headrace_wire.protocol import ModelInfo
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
