"""How many replicas a workload is applied with: the one answer that every apply carries."""

from __future__ import annotations

from headrace.api.conditions import ConditionType
from headrace.api.model import Model, ModelSpec
from headrace.planning.reasons import Why


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


def why_held(model: Model, at: float | None = None, wait_s: float = 0.0) -> str | None:
    """What holds a Model at zero replicas whoever asks for it, and what ends that; None: a replica may come.

    `at`: unix seconds, by which schedules and an override hold; None: the spec alone counts. `wait_s`: seconds
    from then on, at whose end they must still hold it. Where another writer owns the number, spec.replicas says
    nothing.
    """
    spec, meta = model.spec, model.metadata
    if any(c.type == ConditionType.SCALING_ACTIVE and c.reason == Why.CONFLICT for c in model.status.conditions):
        return None
    if spec.scaling.mode == "Auto":
        bounds = spec.scaling.bounds(at)
        if at is None or bounds.most or spec.scaling.bounds(at + wait_s).most:
            return None
        return f"held at 0 replicas by {bounds.detail}, and no request wakes it meanwhile: wait, or change spec.scaling"
    if spec.replicas:
        return None
    return (
        f"held at 0 replicas by spec.replicas with spec.scaling.mode {spec.scaling.mode}, and no request wakes it: "
        f"`kubectl scale models.headrace.dev {meta.name} -n {meta.namespace} --replicas=1`, or mode Auto"
    )
