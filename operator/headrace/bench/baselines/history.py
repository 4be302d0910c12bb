"""Sliding windows for many lanes at once: means of a signal, and maxima of recommendations."""

from __future__ import annotations

import numpy as np

from headrace.bench.trace import Floats


class Means:
    """The mean of a signal over each lane's own window."""

    def __init__(self, windows_s: Floats, dt: float):
        self._width = np.maximum(1, np.round(windows_s / dt)).astype(np.int64)
        self._size = int(self._width.max()) + 1
        self._sums = np.zeros((self._size, len(windows_s)))
        self._lanes = np.arange(len(windows_s))
        self._count = 0

    def add(self, value: Floats) -> None:
        """The value in one more step."""
        last = self._sums[self._count % self._size]
        self._count += 1
        self._sums[self._count % self._size] = last + value

    def mean(self) -> Floats:
        """Over the window, or over what has been seen if that is less."""
        width = np.minimum(self._width, max(1, self._count))
        before = self._sums[(self._count - width) % self._size, self._lanes]
        return np.asarray((self._sums[self._count % self._size] - before) / width)


class Maxima:
    """The largest recommendation over each lane's own window."""

    def __init__(self, windows_s: Floats, every_s: float):
        self._keep = np.maximum(1, np.round(windows_s / every_s)).astype(np.int64)
        self._size = int(self._keep.max())
        self._values = np.full((self._size, len(windows_s)), -np.inf)
        self._ages = np.arange(self._size)
        self._count = 0

    def add(self, value: Floats) -> Floats:
        """Note a recommendation; the largest of the window with it."""
        self._values[self._count % self._size] = value
        order = (self._count - self._ages) % self._size  # youngest first
        self._count += 1
        inside = self._ages[:, None] < self._keep[None, :]
        return np.asarray(np.max(np.where(inside, self._values[order], -np.inf), axis=0))
