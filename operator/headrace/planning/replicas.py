"""How many replicas a workload is applied with: the one answer that every apply carries."""

from __future__ import annotations

from headrace.api.model import ModelSpec


def target(spec: ModelSpec, decision: int | None, observed: int | None, at: float | None = None) -> int:
    """Replicas to apply.

    `decision`: the autoscaler's, since this leader began; `observed`: `spec.replicas` of the Deployment, None where
    there is none. Without a decision the observed count holds, so that a restarted operator changes nothing.
    `at`: unix seconds, by which schedules and an override bind; None: the spec's own bounds do.
    """
    scaling = spec.scaling
    if scaling.mode != "Auto":
        return spec.replicas
    bounds = scaling.bounds(at)
    known = (count for count in (decision, observed, bounds.least) if count is not None)
    return bounds.clamp(next(known))
