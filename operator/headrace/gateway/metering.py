"""Prometheus series of the gateway. Labels are names of objects, never of people; never prompt text."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from headrace.gateway.histogram import Histogram
from headrace.gateway.ledger import Measured, Outcome

TTFT_EDGES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120)  # seconds
TOKEN_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
E2E_EDGES = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
QUEUE_EDGES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
COUNT_EDGES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)

ObjectKey = tuple[str, str]  # namespace, name
_CLASS = ("model_namespace", "model", "class")


class Series:
    """The histograms of one class of one model, with their labels bound once."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str, str]):
        self.ttft = metrics.ttft.labels(*labels)
        self.itl = metrics.itl.labels(*labels)
        self.tpot = metrics.tpot.labels(*labels)
        self.e2e = metrics.e2e.labels(*labels)
        self.queue = metrics.queue.labels(*labels)

    def observe(self, measured: Measured) -> None:
        """Record an answer that was completed."""
        if measured.ttft is not None:
            self.ttft.observe(measured.ttft)
        if measured.tpot is not None:
            self.tpot.observe(measured.tpot)
        self.e2e.observe(measured.e2e)


class TokenSeries:
    """The token counters of one tenant in one class of one model, with their labels bound once."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str, str, str]):
        self.output = metrics.output_tokens.labels(*labels)
        self.cached = metrics.prompt_tokens.labels(*labels, "true")
        self.fresh = metrics.prompt_tokens.labels(*labels, "false")


class Metrics:
    """Every series, on a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, which nobody reads
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by how they ended.", (*_CLASS, "tenant", "outcome"))
        self.refused = self._counter("refused", "Requests refused before they counted as offered.", ("reason",))
        self.prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens served; cached: from the prefix cache.", (*_CLASS, "tenant", "cached")
        )
        self.output_tokens = self._counter("output_tokens", "Output tokens served.", (*_CLASS, "tenant"))
        self.mismatches = self._counter(
            "count_mismatches", "Requests whose prompt the engine counted otherwise.", ("model_namespace", "model")
        )
        self.retries = self._counter("retries", "Requests dispatched again.", ("model_namespace", "model"))
        self.upstream_failures = self._counter(
            "upstream_failures", "Failed exchanges with engines.", ("model_namespace", "model", "kind")
        )
        self.ttft = self._histogram("ttft", "Whole request there to first content sent.", TTFT_EDGES)
        self.itl = self._histogram("itl", "Gap between two events with content.", TOKEN_EDGES)
        self.tpot = self._histogram("tpot", "Mean time per output token after the first.", TOKEN_EDGES)
        self.e2e = self._histogram("e2e", "Whole request there to end of the answer.", E2E_EDGES)
        self.queue = self._histogram("queue", "Whole request there to dispatch.", QUEUE_EDGES)
        self.count = self._histogram("count", "Counting a prompt.", COUNT_EDGES, ()).labels()
        self.queue_age = self._gauge("queue_age_seconds", "Age of the oldest request that no engine has begun.", _CLASS)
        self.queued = self._gauge("queued_requests", "Requests not yet dispatched.", _CLASS)
        self.in_flight = self._gauge("in_flight_requests", "Requests dispatched, not ended.", _CLASS)
        self.connections = self._gauge("upstream_connections_opened", "Connections made to engines.", ())
        self.series = lru_cache(maxsize=4096)(self._series)
        self.tokens = lru_cache(maxsize=4096)(self._tokens)
        self._ended = lru_cache(maxsize=4096)(self.requests.labels)

    def end(self, labels: tuple[str, str, str], tenant: str, outcome: Outcome) -> None:
        """Count an outcome."""
        self._ended(*labels, tenant, outcome.value).inc()

    def _tokens(self, labels: tuple[str, str, str], tenant: str) -> TokenSeries:
        return TokenSeries(self, (*labels, tenant))

    def _series(self, labels: tuple[str, str, str]) -> Series:
        return Series(self, labels)

    def _counter(self, name: str, help_: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"headrace_{name}", help_, labels, registry=self.registry)

    def _gauge(self, name: str, help_: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"headrace_{name}", help_, labels, registry=self.registry)

    def _histogram(
        self, name: str, help_: str, edges: tuple[float, ...], labels: tuple[str, ...] = _CLASS
    ) -> Histogram:
        histogram = Histogram(f"headrace_{name}_seconds", help_, labels, edges)
        self.registry.register(histogram)
        return histogram
