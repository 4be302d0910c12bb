"""How many replicas a workload is applied with: the one answer that every apply carries."""

from __future__ import annotations

from headrace.api.model import ModelSpec


def target(spec: ModelSpec, decision: int | None, observed: int | None, at: float | None = None) -> int:
    """Replicas to apply.

    `decision`: the autoscaler's, since this leader began; `observed`: `spec.replicas` of the Deployment, None where
    there is none. Without a decision the observed count holds, so that a restarted operator changes nothing. Where a
    Deployment is, bounds bind the decision alone, so that no change of the number goes untold.
    `at`: unix seconds, by which schedules and an override bind a new Deployment; None: the spec's own bounds do.
    """
    scaling = spec.scaling
    if scaling.mode != "Auto":
        return spec.replicas
    if observed is None:
        bounds = scaling.bounds(at)
        return bounds.clamp(bounds.least if decision is None else decision)
    return observed if decision is None else decision
