"""The operator's own metrics, `headrace_operator_*`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Measures:
    """One registry per operator, so that two in one process do not meet."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "headrace_operator_reconcile_seconds", "Duration of a reconcile.", ["kind"], registry=self._registry
        )
        self._failures = Counter(
            "headrace_operator_reconcile_failures", "Reconciles that failed.", ["kind"], registry=self._registry
        )
        self._decisions = Counter(
            "headrace_operator_scaling_changes",
            "Changes of the number of replicas that were decided.",
            ["model_namespace", "model", "reason"],
            registry=self._registry,
        )
        self._desired = Gauge(
            "headrace_operator_desired_replicas",
            "Replicas that are wanted.",
            ["model_namespace", "model"],
            registry=self._registry,
        )

    def reconciled(self, kind: str, seconds: float, *, ok: bool) -> None:
        """A reconcile ended."""
        self._seconds.labels(kind).observe(seconds)
        if not ok:
            self._failures.labels(kind).inc()

    def decided(self, namespace: str, model: str, reason: str) -> None:
        """A change was decided."""
        self._decisions.labels(namespace, model, reason).inc()

    def desired(self, namespace: str, model: str, replicas: int) -> None:
        """So many replicas are wanted."""
        self._desired.labels(namespace, model).set(replicas)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read at each scrape."""
        Gauge(f"headrace_operator_{name}", text, registry=self._registry).set_function(read)

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
