"""What the core reports of the prefix cache is what a scraper reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headrace_engine.api.metrics import Metrics
from headrace_wire.protocol import CacheState, EngineState, ModelInfo


def test_the_prefix_cache_in_metrics() -> None:
    cache = CacheState(
        blocks=3,
        bytes=4096,
        asked_tokens=500,
        hit_tokens=192,
        saved_prefill_s=0.25,
        evictions={"room": 4, "parent": 2, "reset": 1},
    )
    state = EngineState(model=ModelInfo(name="m"), cache=cache)
    prefix = "headrace_engine_prefix_cache"
    text = Metrics(lambda: state, lambda: 0).text().decode()
    samples = {
        (sample.name, sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix)
    }
    assert samples == {
        (f"{prefix}_bytes", None): 4096.0,
        (f"{prefix}_asked_tokens_total", None): 500.0,
        (f"{prefix}_hit_tokens_total", None): 192.0,
        (f"{prefix}_saved_prefill_seconds_total", None): 0.25,
        (f"{prefix}_evictions_total", "room"): 4.0,
        (f"{prefix}_evictions_total", "parent"): 2.0,
        (f"{prefix}_evictions_total", "reset"): 1.0,
    }
