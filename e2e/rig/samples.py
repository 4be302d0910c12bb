"""Objects for end-to-end tests."""

from __future__ import annotations

from typing import Any

API = "headrace.dev/v1alpha1"
GENEROUS = [
    {"name": "interactive", "priority": 100, "ttft": "20s", "tpot": "2s", "maxQueueAge": "1s", "objectivePercent": 95},
    {"name": "batch", "priority": 10, "ttft": "60s", "tpot": "5s", "maxQueueAge": "30s", "objectivePercent": 90},
]


def slo(name: str = "chat") -> dict[str, Any]:
    """Targets that a slow machine meets."""
    return {
        "apiVersion": API,
        "kind": "ServiceLevelObjective",
        "metadata": {"name": name},
        "spec": {"classes": GENEROUS},
    }


def tenant(name: str, models: list[str], sha256: str, **spec: Any) -> dict[str, Any]:
    """A tenant with one key."""
    return {
        "apiVersion": API,
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {
            "apiKeys": [{"name": "e2e", "sha256": sha256}],
            "models": [{"name": m} for m in models],
            "classes": ["interactive", "batch"],
            **spec,
        },
    }


def model(name: str, **spec: Any) -> dict[str, Any]:
    """A small Model on the demo weights: two sequences, one thread, half a CPU."""
    return {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {
            "source": {"uri": "builtin://demo"},
            "serviceLevelRef": {"name": "chat"},
            "engine": {"maxSequences": 2},
            "replicas": 1,
            "pod": {
                "resources": {
                    "requests": {"cpu": "100m", "memory": "512Mi"},
                    "limits": {"cpu": "500m", "memory": "1500Mi"},
                }
            },
            **spec,
        },
    }


def scaled(low: int, high: int, *, down: str = "15s", zero: str = "15s") -> dict[str, Any]:
    """Settings of an autoscaler that reacts within a test's patience."""
    return {"mode": "Auto", "minReplicas": low, "maxReplicas": high, "downAfter": down, "toZeroAfter": zero}
