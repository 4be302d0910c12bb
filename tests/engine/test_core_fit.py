"""Least squares without negative coefficients: what is exact, what noise does, what is forgotten."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.core.fit import Sums, fit

TRUE = (0.02, 0.001, 0.0, 0.3)


def observed(true: Sequence[float], noise: float, count: int, seed: int = 1, forget: float = 1.0) -> Sums:
    """Times of steps with random features, each error by its share of the time."""
    dice = random.Random(seed)
    sums = Sums(len(true), forget)
    for _ in range(count):
        features = (1.0, dice.uniform(0, 16), dice.uniform(0, 4), dice.choice((0.0, dice.random())))
        took = sum(a * b for a, b in zip(true, features, strict=True)) * (1 + dice.uniform(-noise, noise))
        sums.add([value / took for value in features])
    return sums


def loss(sums: Sums, coefficients: Sequence[float]) -> float:
    """Sum of squared errors, up to a constant."""
    pairs = [(i, j) for i in range(len(coefficients)) for j in range(len(coefficients))]
    squares = math.fsum(coefficients[i] * coefficients[j] * sums.products[i][j] for i, j in pairs)
    return squares - 2 * math.fsum(a * b for a, b in zip(coefficients, sums.values, strict=True))


def test_without_noise_it_is_exact() -> None:
    assert fit([observed(TRUE, 0.0, 50)]) == pytest.approx(TRUE, abs=1e-5)  # the prior's share


@given(st.integers(0, 10_000), st.floats(0.0, 0.5), st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_no_coefficient_is_negative_and_leaving_one_out_makes_up_for_it(seed: int, noise: float, count: int) -> None:
    sums = observed(TRUE, noise, count, seed)
    found = fit([sums])
    assert min(found) >= 0.0
    best = loss(sums, found)
    dice = random.Random(seed)
    for _ in range(20):
        other = [max(0.0, value * dice.uniform(0.9, 1.1)) for value in found]
        assert best <= loss(sums, other) + 1e-3 * abs(best)


def test_clipping_afterwards_would_be_wrong() -> None:
    """Two features that grow together, the second for free: the first must not pay for a negative second one."""
    sums = Sums(2, 1.0)
    dice = random.Random(3)
    for size in range(1, 40):
        took = 0.01 * size * (1 + dice.uniform(-0.2, 0.2))
        sums.add([size / took, (size + dice.random()) / took])
    found = fit([sums])
    assert sum(found) == pytest.approx(0.01, rel=0.1)


def test_features_never_seen_cost_nothing() -> None:
    sums = Sums(3, 1.0)
    for _ in range(10):
        sums.add([1 / 0.02, 0.0, 0.0])
    assert fit([sums]) == pytest.approx([0.02, 0.0, 0.0], rel=1e-3)


def test_old_observations_fade_only_with_new_ones_of_their_own_sums() -> None:
    kind, other = Sums(2, 0.9), Sums(2, 0.9)
    for _ in range(50):
        kind.add([1 / 0.01, 0.0])
        other.add([1 / 0.05, 1 / 0.05])
    before = fit([kind, other])
    for _ in range(1000):
        kind.add([1 / 0.01, 0.0])
    assert fit([kind, other]) == pytest.approx(before, rel=1e-3)
    for _ in range(100):
        other.add([1 / 0.09, 1 / 0.09])
    assert fit([kind, other]) == pytest.approx([0.01, 0.08], rel=0.02)
