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
    products = [
        [sum(entry) for entry in zip(*rows, strict=True)] for rows in zip(*(s.products for s in sums), strict=True)
    ]
    values = [sum(entry) for entry in zip(*(s.values for s in sums), strict=True)]
    sizes = [math.sqrt(products[i][i] + _PRIOR) for i in range(size)]
    # Brought to one size, so that none is lost beside a large one; what was so solved is brought back.
    scaled = [
        [value / (a * b) for value, b in zip(row, sizes, strict=True)] for row, a in zip(products, sizes, strict=True)
    ]
    for i in range(size):
        scaled[i][i] = 1.0  # the prior's share included
    right = [value / a for value, a in zip(values, sizes, strict=True)]
    kept = list(range(size))
    while kept:
        found = _solve(scaled, right, kept)
        lowest = min(range(len(kept)), key=found.__getitem__)
        if found[lowest] >= 0.0:
            coefficients = [0.0] * size
            for i, value in zip(kept, found, strict=True):
                coefficients[i] = value / sizes[i]
            return coefficients
        del kept[lowest]
    return [0.0] * size


def _solve(matrix: Matrix, right: Sequence[float], kept: Sequence[int]) -> list[float]:
    """Solve the rows and columns `kept` of a positive semidefinite system whose diagonal is 1."""
    rows = [[*(matrix[i][j] for j in kept), right[i]] for i in kept]
    size = len(kept)
    for i, pivot in enumerate(rows):
        pivot[i] = max(pivot[i], 0.0) + _LEAST
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            if factor:
                for k in range(i, size + 1):
                    row[k] -= factor * pivot[k]
    found = [0.0] * size
    for i in reversed(range(size)):
        row = rows[i]
        found[i] = (row[size] - sum(row[k] * found[k] for k in range(i + 1, size))) / row[i]
    return found
