"""How many replicas a workload is applied with: the one answer that every apply carries."""

from __future__ import annotations

from headrace.api.model import ModelSpec


def target(spec: ModelSpec, decision: int | None, observed: int | None) -> int:
    """Replicas to apply.

    `decision`: the autoscaler's, since this leader began; `observed`: `spec.replicas` of the Deployment, None where
    there is none. Without a decision the observed count holds, so that a restarted operator changes nothing.
    """
    scaling = spec.scaling
    if scaling.mode != "Auto":
        return spec.replicas
    if decision is not None:
        wanted = decision
    elif observed is not None:
        wanted = observed
    else:
        wanted = scaling.min_replicas
    return min(max(wanted, scaling.min_replicas), scaling.max_replicas)
