"""Histograms with fixed edges that cost a bisection and an addition: they are fed once per streamed event."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Buckets:
    """Counts of values by edge. Used from one thread."""

    __slots__ = ("_edges", "counts", "sum")

    def __init__(self, edges: Sequence[float]):
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)  # by the first edge that is not below the value; the last: beyond all
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self._edges, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(edge, values up to it), as Prometheus wants them."""
        rows, total = [], 0
        for edge, count in zip([*map(float, self._edges), float("inf")], self.counts, strict=True):
            total += count
            rows.append(("+Inf" if edge == float("inf") else repr(edge), float(total)))
        return rows


class Histogram(Collector):
    """Buckets by label values."""

    def __init__(self, name: str, help_: str, labels: tuple[str, ...], edges: Sequence[float]):
        self._name, self._help, self._labels, self._edges = name, help_, labels, tuple(edges)
        self._children: dict[tuple[str, ...], Buckets] = {}

    def labels(self, *values: str) -> Buckets:
        """The buckets of these label values, made on first use."""
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = Buckets(self._edges)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """For the registry."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, buckets in self._children.items():
            family.add_metric(values, buckets.cumulative(), buckets.sum)
        yield family
