"""The operator's memory fit and the engine's pool agree, page for page, given the same use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace_engine.core.failure import StartError
from headrace_engine.runner import memory as engine
from headrace_wire.memory import Load, element_bytes, step_bytes
from headrace_wire.shape import ModelShape

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors/memory.json").read_text())["cases"]
ALONE = [case for case in CASES if not {"tensor", "pipeline"} & case["load"].keys()]
MANY = 100_000  # sequences: the engine's pool is then bounded by memory alone


def pool(case: dict[str, Any]) -> int:
    expect = case["expect"]
    used = expect["weights"] + expect["runtime"]
    supply = engine.Supply(
        fixed=None, percent=case["memory_percent"], limit=case["capacity"], used=used, working=expect["step"]
    )
    demand = engine.Demand(page_bytes=64 * expect["kv_per_token"], max_tokens=64, max_sequences=MANY)
    return engine.pool_pages(demand, supply)


@pytest.mark.parametrize("case", ALONE, ids=[case["name"] for case in ALONE])
def test_pool_has_the_pages_of_the_fit(case: dict[str, Any]) -> None:
    if case["expect"]["pages"] == 0:
        with pytest.raises(StartError):
            pool(case)
        return
    assert pool(case) == case["expect"]["pages"] - 1  # the engine does not count the dummy page


@pytest.mark.parametrize("case", ALONE, ids=[case["name"] for case in ALONE])
def test_step_needs_what_the_fit_assumes(case: dict[str, Any]) -> None:
    shape, load = msgspec.convert(case["shape"], ModelShape), msgspec.convert(case["load"], Load)
    sizes = (shape.hidden, shape.intermediate, shape.vocab, load.max_batch_tokens, load.max_sequences)
    assert engine.working_bytes(*sizes, element_bytes(shape, load.dtype)) == step_bytes(shape, load)
