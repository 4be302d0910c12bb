"""`vllm:*` names for what `headrace_engine_*` says, so that dashboards and scalers made for them work unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class Alias:
    """One name of ours under another; `labels` are those that have another name there."""

    name: str
    source: str
    kind: str  # gauge | counter | histogram
    labels: tuple[tuple[str, str], ...] = ()


ALIASES = (
    Alias("vllm:num_requests_running", "headrace_engine_running", "gauge"),
    Alias("vllm:num_requests_waiting", "headrace_engine_waiting", "gauge"),
    Alias("vllm:num_preemptions", "headrace_engine_preemptions", "counter"),
    Alias("vllm:prompt_tokens", "headrace_engine_prompt_tokens", "counter"),
    Alias("vllm:generation_tokens", "headrace_engine_generated_tokens", "counter"),
    Alias("vllm:prefix_cache_queries", "headrace_engine_prefix_cache_asked_tokens", "counter"),
    Alias("vllm:prefix_cache_hits", "headrace_engine_prefix_cache_hit_tokens", "counter"),
    Alias("vllm:request_success", "headrace_engine_requests", "counter", (("outcome", "finished_reason"),)),
    Alias("vllm:time_to_first_token_seconds", "headrace_engine_ttft_seconds", "histogram"),
    Alias("vllm:inter_token_latency_seconds", "headrace_engine_itl_seconds", "histogram"),
)
USAGE = "vllm:kv_cache_usage_perc"  # used pages over all, 0 to 1


class Aliases(Collector):
    """Generated from what the other collectors say; `model` is in every sample as `model_name`."""

    def __init__(self, collect: Callable[[], Iterator[Metric]], model: str):
        self._collect = collect
        self._model = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        """In the order of ALIASES; what is not known yet is left out."""
        found = {metric.name: metric for metric in self._collect()}
        for alias in ALIASES:
            source = found.get(alias.source)
            if source is not None:
                yield self._renamed(alias, source)
        pages = found.get("headrace_engine_pages")
        if pages is not None:
            kinds = {sample.labels["kind"]: sample.value for sample in pages.samples}
            usage = Metric(USAGE, "Used pages over all pages", "gauge")
            usage.add_sample(USAGE, self._model, kinds["used"] / max(1.0, kinds["total"]))
            yield usage

    def _renamed(self, alias: Alias, source: Metric) -> Metric:
        metric = Metric(alias.name, source.documentation, alias.kind)
        names = dict(alias.labels)
        for sample in source.samples:
            metric.samples.append(
                Sample(
                    alias.name + sample.name.removeprefix(source.name),
                    {**self._model, **{names.get(label, label): value for label, value in sample.labels.items()}},
                    sample.value,
                )
            )
        return metric
