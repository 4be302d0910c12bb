"""`headrace_engine_*`: counted where it happens, gauges read from the core's latest state when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace_engine.api.aliases import Aliases
from headrace_engine.api.mailbox import Mailbox
from headrace_wire.protocol import CacheState, Delta, EngineState

TTFT_EDGES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)  # s
ITL_EDGES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)  # s


class _StateCollector(Collector):
    """Gauges of the core's latest report."""

    def __init__(self, state: Callable[[], EngineState | None], open_requests: Callable[[], int]):
        self._state = state
        self._open_requests = open_requests

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "headrace_engine_open_requests", "Requests that the API process is answering", self._open_requests()
        )
        state = self._state()
        if state is None:
            return
        yield _gauge("headrace_engine_running", "Sequences that are computed", state.running)
        yield _gauge("headrace_engine_waiting", "Sequences that wait for their first token of prefill", state.waiting)
        yield _gauge("headrace_engine_queued_tokens", "Prompt tokens not yet prefilled", state.queued_tokens)
        yield _gauge("headrace_engine_oldest_waiting_seconds", "Age of the oldest waiting", state.oldest_waiting_s or 0)
        yield _gauge("headrace_engine_prefill_tokens_per_second", "Prefill that a prompt would get", state.prefill_rate)
        yield _gauge("headrace_engine_draining", "1 while draining", int(state.draining))
        pages = GaugeMetricFamily("headrace_engine_pages", "Pages of KV by what they hold", labels=["kind"])
        for kind, value in (("total", state.total), ("free", state.free), ("evictable", state.evictable)):
            pages.add_metric([kind], value)
        pages.add_metric(["used"], state.total - state.free - state.evictable)
        yield pages
        preemptions = CounterMetricFamily("headrace_engine_preemptions", "Sequences preempted and recomputed")
        preemptions.add_metric([], state.preemptions)
        yield preemptions
        yield from _cache(state.cache)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _cache(cache: CacheState) -> Iterator[Metric]:
    name = "headrace_engine_prefix_cache"
    yield _gauge(f"{name}_bytes", "KV that can be found by its prefix, in use or not", cache.bytes)
    yield CounterMetricFamily(f"{name}_asked_tokens", "Prompt tokens looked up, once a request", cache.asked_tokens)
    yield CounterMetricFamily(f"{name}_hit_tokens", "Of them, found", cache.hit_tokens)
    saved = "Prefill not computed because it was found, by the step-time model"
    yield CounterMetricFamily(f"{name}_saved_prefill_seconds", saved, cache.saved_prefill_s)
    evictions = CounterMetricFamily(f"{name}_evictions", "Blocks that lost their place, by reason", labels=["reason"])
    for reason, count in cache.evictions.items():
        evictions.add_metric([reason], count)
    yield evictions


class Metrics:
    """The engine's metrics, in a registry of their own."""

    def __init__(self, state: Callable[[], EngineState | None], open_requests: Callable[[], int], model: str = ""):
        """`model`: the name under which the `vllm:*` aliases report."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._aliases = CollectorRegistry()
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(state, open_requests))
        own = self.registry
        self._requests = Counter("headrace_engine_requests", "Requests by how they ended", ["outcome"], registry=own)
        self._prompt = Counter("headrace_engine_prompt_tokens", "Prompt tokens of requests that began", registry=own)
        self._cached = Counter("headrace_engine_cached_tokens", "Prompt tokens from the prefix cache", registry=own)
        self._output = Counter("headrace_engine_generated_tokens", "Tokens generated", registry=own)
        self._ttft = Histogram(
            "headrace_engine_ttft_seconds", "Submit to first token, once a request", buckets=TTFT_EDGES, registry=own
        )
        self._itl = Histogram(
            "headrace_engine_itl_seconds", "Gap between token events", buckets=ITL_EDGES, registry=own
        )

        self._aliases.register(Aliases(lambda: iter(own.collect()), model))

    def arrived(self, box: Mailbox, delta: Delta, now: float) -> None:
        """A delta came from the core."""
        if not delta.tokens:
            return
        self._output.inc(len(delta.tokens))
        if box.first is None:
            box.first = now
            self._ttft.observe(now - box.opened)
            self._cached.inc(delta.cached)
        elif box.latest is not None and len(box.ids) == 1:
            self._itl.observe(now - box.latest)
        box.latest = now

    def began(self, prompt_tokens: int) -> None:
        """A request was sent to the core."""
        self._prompt.inc(prompt_tokens)

    def ended(self, outcome: str) -> None:
        """A request ended, exactly once: `ok` or the value of a Reason."""
        self._requests.labels(outcome).inc()

    def text(self) -> bytes:
        """The Prometheus text format."""
        return bytes(generate_latest(self.registry) + generate_latest(self._aliases))
