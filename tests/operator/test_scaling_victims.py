"""Which replicas go: the fewest tokens in flight, then the least worth in the cache."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.scaling.victims import Worth, victims, worth
from headrace_wire.protocol import CacheState, EngineState, ModelInfo


def state(held: int = 0, queued: int = 0, **cache: Any) -> EngineState:
    total, evictable = 100, min(10, 100 - held)
    model = ModelInfo(name="m", page_tokens=64)
    free = total - held - evictable
    return EngineState(
        model=model, total=total, free=free, evictable=evictable, queued_tokens=queued, cache=CacheState(**cache)
    )


WORTH = {
    "idle": (state(), (0, 0.0)),
    "pages that requests hold": (state(held=3), (192, 0.0)),
    "prompts that wait": (state(held=1, queued=500), (564, 0.0)),
    "a cache that nobody asked": (state(blocks=8), (0, 0.0)),
    "a cache that half of the prompts found": (state(blocks=8, asked_tokens=200, hit_tokens=100), (0, 256.0)),
    "more found than asked for": (state(blocks=1, asked_tokens=1, hit_tokens=9), (0, 64.0)),
    "a cache that lies": (state(blocks=-5, asked_tokens=1, hit_tokens=-9), (0, 0.0)),
    "no report": (None, (None, 0.0)),
}


@pytest.mark.parametrize(("report", "expected"), WORTH.values(), ids=WORTH)
def test_worth(report: EngineState | None, expected: tuple[int | None, float]) -> None:
    found = worth("p", report)
    assert (found.in_flight_tokens, found.prefix_tokens) == expected


CHOICES = {
    "fewest tokens": ([Worth("a", 9), Worth("b", 3), Worth("c", 5)], 1, {"b"}),
    "two of them": ([Worth("a", 9), Worth("b", 3), Worth("c", 5)], 2, {"b", "c"}),
    "a warm cache is kept": ([Worth("a", 0, 900.0), Worth("b", 0, 10.0)], 1, {"b"}),
    "tokens go before the cache": ([Worth("a", 1, 0.0), Worth("b", 0, 900.0)], 1, {"b"}),
    "who does not say goes last": ([Worth("a", None), Worth("b", 10_000)], 1, {"b"}),
    "a tie goes by name": ([Worth("b", 0), Worth("a", 0)], 1, {"a"}),
    "all": ([Worth("a", 1)], 3, {"a"}),
    "none": ([Worth("a", 1)], 0, set()),
    "fewer than none": ([Worth("a", 1)], -2, set()),
}


@pytest.mark.parametrize(("replicas", "count", "expected"), CHOICES.values(), ids=CHOICES)
def test_victims(replicas: list[Worth], count: int, expected: set[str]) -> None:
    assert victims(replicas, count) == expected


@given(
    tokens=st.lists(st.none() | st.integers(0, 20), max_size=8), count=st.integers(0, 9), seed=st.integers(0, 99)
)  # fmt: skip
def test_the_choice_depends_on_no_order_and_spares_the_busier(tokens: list[int | None], count: int, seed: int) -> None:
    replicas = [Worth(f"p{i}", n) for i, n in enumerate(tokens)]
    shuffled = list(replicas)
    random.Random(seed).shuffle(shuffled)
    gone = victims(replicas, count)
    assert gone == victims(shuffled, count)
    assert len(gone) == min(count, len(replicas))
    inf = float("inf")
    lost = [inf if r.in_flight_tokens is None else r.in_flight_tokens for r in replicas if r.pod in gone]
    kept = [inf if r.in_flight_tokens is None else r.in_flight_tokens for r in replicas if r.pod not in gone]
    assert max(lost, default=-1) <= min(kept, default=inf)
