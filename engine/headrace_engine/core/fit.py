"""Least squares with coefficients that are never negative, over sums that forget. Pure, and small: a few features."""

from __future__ import annotations

import math
from collections.abc import Sequence

_PRIOR = 1e-3  # weight of the belief that a coefficient is zero, in observations of a feature of 1
_LEAST = 1e-9  # by which features differ at least: what they share beyond it cannot be told apart

Matrix = list[list[float]]


class Sums:
    """Products of features, over observations of the value 1; older ones weigh less with each new one."""

    def __init__(self, size: int, forget: float):
        """`forget`: weight of an observation after one more."""
        self.count = 0
        self.products: Matrix = [[0.0] * size for _ in range(size)]
        self.values = [0.0] * size
        self._forget = forget

    def add(self, features: Sequence[float]) -> None:
        """One observation."""
        self.count += 1
        forget = self._forget
        for i, x in enumerate(features):
            row = self.products[i]
            for j, y in enumerate(features):
                row[j] = row[j] * forget + x * y
            self.values[i] = self.values[i] * forget + x


def fit(sums: Sequence[Sums]) -> list[float]:
    """The coefficients, none negative, that come closest to 1 over all observations.

    One that would be negative is left out, the most negative first, and the others are fitted anew: setting it to zero
    at the end would leave the others too large.
    """
    size = len(sums[0].values)
    products = [[math.fsum(s.products[i][j] for s in sums) for j in range(size)] for i in range(size)]
    values = [math.fsum(s.values[i] for s in sums) for i in range(size)]
    kept = list(range(size))
    while kept:
        found = _solve(products, values, kept)
        lowest = min(range(len(kept)), key=found.__getitem__)
        if found[lowest] >= 0.0:
            coefficients = [0.0] * size
            for i, value in zip(kept, found, strict=True):
                coefficients[i] = value
            return coefficients
        del kept[lowest]
    return [0.0] * size


def _solve(products: Matrix, values: Sequence[float], kept: Sequence[int]) -> list[float]:
    """The least-squares solution over some features, which are brought to one size for it."""
    sizes = [math.sqrt(products[i][i] + _PRIOR) for i in kept]
    rows = []
    for a, i in enumerate(kept):
        row = [products[i][j] / (sizes[a] * sizes[b]) for b, j in enumerate(kept)]
        row[a] = 1.0 + _LEAST
        rows.append([*row, values[i] / sizes[a]])
    return [value / size for value, size in zip(_eliminate(rows), sizes, strict=True)]


def _eliminate(rows: Matrix) -> list[float]:
    """Solve a positive definite system, given with its right-hand side as the last column."""
    size = len(rows)
    for i in range(size):
        pivot = rows[i]
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            for k in range(i, size + 1):
                row[k] -= factor * pivot[k]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][k] * found[k] for k in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / max(rows[i][i], _LEAST)
    return found
