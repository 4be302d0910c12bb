"""The whole status of a Model, computed anew each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from headrace.api import labels
from headrace.api.conditions import Condition, ConditionType, merge
from headrace.api.gateway_state import EngineReport
from headrace.api.model import Model
from headrace.api.model_status import (
    ClassStatus,
    ColdStart,
    CommunicationStatus,
    EngineStatus,
    ModelStatus,
    ScalingStatus,
    ShapeStatus,
    SourceStatus,
)
from headrace.api.quantities import show_seconds
from headrace.api.slo import SloSpec
from headrace.planning.cures import AT_ZERO, FROM_ZERO, HELD_AT_ZERO, NOT_SERVING, WRITTEN_ZERO, cured
from headrace.planning.installation import Installation
from headrace.planning.judge import Judgement
from headrace.planning.live import ClassFigures, class_statuses
from headrace.planning.pods import PodReport
from headrace.planning.reasons import Why
from headrace.planning.workload import condition, engine_conformant, workload_ready

DECISIONS_KEPT = 10


@dataclass(frozen=True, kw_only=True)
class ScalingView:
    """What the autoscaler says of a Model; all empty where it has not looked yet."""

    desired: int | None = None
    trouble: tuple[str, str] | None = None  # reason and message, while the inputs allow no decision
    decisions: tuple[dict[str, Any], ...] = ()  # newest first
    other_manager: str | None = None  # who owns .spec.replicas of the Deployment instead of us
    rival: str = ""  # that manager in words, where more is known of it than its name
    bounds: str = ""  # the schedule or override whose bounds hold, in words

    @property
    def writer(self) -> str:
        """Who that is, for a sentence."""
        return self.rival or f"field manager {self.other_manager!r}"


@dataclass(frozen=True, kw_only=True)
class View:
    """All that a Model's status follows from."""

    model: Model
    judgement: Judgement
    slo: SloSpec
    installation: Installation
    pods: PodReport
    wanted: int  # replicas applied
    now: datetime
    communication: CommunicationStatus | None = None
    engines: Sequence[EngineReport] = ()
    figures: Sequence[ClassFigures] = ()
    history: str = ""  # attainment over the objective's window, in words
    scaling: ScalingView = field(default_factory=ScalingView)


def model_status(view: View) -> ModelStatus:
    """The status to write."""
    previous, pods = view.model.status, view.pods
    levels = class_statuses(previous.service_level, view.figures, view.slo, view.now)
    return ModelStatus(
        observed_generation=view.model.metadata.generation,
        replicas=pods.ready + pods.waiting + pods.older,
        ready_replicas=pods.all_ready,
        selector=",".join(f"{k}={v}" for k, v in labels.model_selector(view.model.metadata.name).items()),
        url=view.installation.url,
        source=_source(view),
        pod_revision=pods.revision or previous.pod_revision,
        service_level=levels,
        memory=_memory(view),
        communication=view.communication,
        engine=_engine(view),
        scaling=_scaling(view),
        conditions=_conditions(view, levels),
    )


def invalid_status(model_name: str, generation: int, previous: ModelStatus, why: Sequence[str]) -> ModelStatus:
    """The status of a Model whose spec cannot be read: the figures stay, the conditions say so.

    `why`: field paths with what is wrong. Transition times are left to `stamp`.
    """
    message = cured(Why.INVALID_SPEC.value, "; ".join(why)[:3500])
    conditions = [
        condition(ConditionType.READY, "False", Why.INVALID_SPEC, message),
        condition(ConditionType.ACCEPTED, "False", Why.INVALID_SPEC, message),
        condition(ConditionType.STALLED, "True", Why.INVALID_SPEC, message),
    ]
    selector = ",".join(f"{k}={v}" for k, v in labels.model_selector(model_name).items())
    return previous.model_copy(
        update={"observed_generation": generation, "selector": selector, "conditions": conditions}
    )


def stamp(status: ModelStatus, previous: ModelStatus, now: datetime) -> dict[str, Any]:
    """As the API holds it, with each condition's generation and time."""
    return {
        **status.model_dump(by_alias=True, exclude_none=True, mode="json"),
        "conditions": stamped(status.conditions, previous.conditions, status.observed_generation, now),
    }


def stamped(
    conditions: Sequence[Condition], previous: Sequence[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Conditions as the API holds them: of this generation, each with the time of its last change."""
    current = [c.model_copy(update={"observed_generation": generation}) for c in conditions]
    merged = merge(previous, current, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return [c.model_dump(by_alias=True, mode="json") for c in merged]


def _conditions(view: View, levels: Sequence[ClassStatus]) -> list[Condition]:
    judgement = view.judgement
    parts = [
        _accepted(judgement),
        _memory_fits(view),
        workload_ready(view.pods, view.wanted, judgement.refusal, _zero(view)),
    ]
    conditions = [
        _ready(parts),
        *parts,
        engine_conformant(view.model, view.engines, view.pods),
        _service_level_met(levels, view),
        _scaling_active(view),
    ]
    if judgement.refusal is not None:
        refusal = judgement.refusal
        conditions.append(condition(ConditionType.STALLED, "True", refusal.reason, refusal.message))
    elif _is_reconciling(view, parts[-1]):
        conditions.append(condition(ConditionType.RECONCILING, "True", Why.ROLLING_OUT, parts[-1].message))
    return conditions


def _zero(view: View) -> str:
    """Whose decision zero replicas are, and what ends it."""
    spec = view.model.spec
    if view.scaling.other_manager is not None:
        return f"zero replicas are what {view.scaling.writer} wants"
    if spec.scaling.mode != "Auto":
        return "zero replicas are wanted: spec.replicas is 0"
    bounds = spec.scaling.bounds(view.now.timestamp())
    if bounds.most == 0:
        return f"zero replicas are wanted by {bounds.detail}: no request wakes the Model meanwhile"
    return "zero replicas are wanted; a request wakes the Model"


def _ready(parts: Sequence[Condition]) -> Condition:
    """Accepted and MemoryFits and WorkloadReady: the first that is not True, False before Unknown."""
    for status in ("False", "Unknown"):
        for part in parts:
            if part.status == status:
                return part.model_copy(update={"type": ConditionType.READY.value})
    last = parts[-1]
    reason = last.reason if last.reason == Why.SCALED_TO_ZERO.value else Why.READY
    return condition(ConditionType.READY, "True", reason, last.message)


def _accepted(judgement: Judgement) -> Condition:
    refusal = judgement.refusal
    if refusal is None or refusal.condition is not ConditionType.ACCEPTED:
        return condition(ConditionType.ACCEPTED, "True", Why.VALID, "the spec is valid and its references exist")
    return condition(ConditionType.ACCEPTED, "False", refusal.reason, refusal.message)


def _memory_fits(view: View) -> Condition:
    kind, fit = ConditionType.MEMORY_FITS, view.judgement.fit
    if fit is not None:
        return condition(kind, "False" if fit.fits is False else "True", fit.verdict.value, fit.message)
    kept = _kept_fit(view)
    if kept is not None:
        return kept
    return condition(kind, "Unknown", Why.SHAPE_UNKNOWN, "the model's shape is read when the first pod starts")


def _kept_fit(view: View) -> Condition | None:
    """What was said of this very generation, before the pods that showed the shape went."""
    for old in view.model.status.conditions:
        if old.type == ConditionType.MEMORY_FITS.value and old.observed_generation == view.model.metadata.generation:
            return old if old.status != "Unknown" else None
    return None


def _memory(view: View) -> Any:
    if view.judgement.fit is not None:
        return view.judgement.fit.as_status()
    return view.model.status.memory if _kept_fit(view) is not None else None


def _service_level_met(levels: Sequence[ClassStatus], view: View) -> Condition:
    kind = ConditionType.SERVICE_LEVEL_MET
    objectives = {c.name: c.objective_percent for c in view.slo.classes}
    known = [(s, objectives[s.name]) for s in levels if s.goodput_percent is not None and s.name in objectives]
    if not known:
        return condition(kind, "Unknown", Why.NO_TRAFFIC, view.history or "nothing was offered: goodput is unknown")
    words = "; ".join(f"class {s.name}: {s.goodput_percent} % good, objective {goal} %" for s, goal in known)
    met = all((s.goodput_percent or 0) >= goal for s, goal in known)
    message = "; ".join(filter(None, (words, view.history)))
    if met:
        return condition(kind, "True", Why.MET, message)
    return condition(kind, "False", Why.MISSED, cured(_why_missed(view), message))


def _why_missed(view: View) -> str:
    """Which cure holds: replicas only help a Model that has some."""
    scaling = view.model.spec.scaling
    bounds = scaling.bounds(view.now.timestamp())
    if view.pods.all_ready:
        return FROM_ZERO if scaling.mode == "Auto" and bounds.least == 0 < bounds.most else Why.MISSED.value
    if view.wanted or view.judgement.refusal is not None or view.scaling.other_manager is not None:
        return NOT_SERVING
    if scaling.mode != "Auto":
        return WRITTEN_ZERO
    return AT_ZERO if bounds.most else HELD_AT_ZERO


def _scaling_active(view: View) -> Condition:
    kind, scaling, spec = ConditionType.SCALING_ACTIVE, view.scaling, view.model.spec
    if scaling.other_manager is not None:
        return condition(kind, "False", Why.CONFLICT, _conflict(view))
    mode = spec.scaling.mode
    if view.judgement.refusal is not None and mode != "Off":
        message = "nothing is scaled while the Model is stalled: do what the condition Stalled says first"
        return condition(kind, "False", Why.NOT_APPLIED, message)
    if mode == "Off":
        when = "" if view.judgement.refusal is None else " once the Model is no longer stalled"
        message = (
            f"spec.scaling.mode is Off: spec.replicas {spec.replicas} holds{when}; Auto lets the autoscaler decide"
        )
        if spec.scaling.override is not None or spec.scaling.schedules:
            message += ", and only then do schedules and an override count"
        return condition(kind, "False", Why.SCALING_OFF, message)
    now = spec.scaling.bounds(view.now.timestamp())
    bounds = f"between {now.least} and {now.most} replicas" + (f" by {now.detail}" if now.by else "")
    last = scaling.decisions[0] if scaling.decisions else None
    message = bounds if last is None else f"{bounds}; last change at {last.get('at')}: {last.get('message')}"
    if mode == "Advise":
        words = "spec.scaling.mode is Advise: decisions are recorded, not acted on"
        return condition(kind, "False", Why.ADVISING, f"{words}; {message}")
    if scaling.trouble is not None:
        return condition(kind, "Unknown", scaling.trouble[0], cured(*scaling.trouble))
    return condition(kind, "True", Why.ACTIVE, message)


def _conflict(view: View) -> str:
    """Another writer owns the number of replicas: what to do if it shall go on, and if it shall not."""
    name, writer = view.model.metadata.name, view.scaling.writer
    told = f"{writer} owns .spec.replicas of Deployment {name}; Headrace leaves it alone"
    entry = "remove it, and its entry in the Deployment's metadata.managedFields"
    if view.model.spec.scaling.mode == "Off":
        held = f"{told}, and spec.replicas {view.model.spec.replicas} does not hold meanwhile"
        return f"{held}: nothing need change if it shall decide; else {entry}"
    return f'{told}: set spec.scaling.mode to "Off" and let it decide, or {entry}'


def _is_reconciling(view: View, workload: Condition) -> bool:
    """A rollout is under way: never because of scaling."""
    if view.pods.older:
        return True
    previous = view.model.status
    was = any(c.type == ConditionType.RECONCILING.value and c.status == "True" for c in previous.conditions)
    return workload.status != "True" and (was or previous.pod_revision != view.pods.revision)


def _source(view: View) -> SourceStatus | None:
    fetched, uri, previous = view.pods.fetched, view.model.spec.source.uri, view.model.status
    if fetched is not None:
        shape = None if fetched.shape is None else ShapeStatus(**msgspec.structs.asdict(fetched.shape))
        return SourceStatus(uri=uri, revision=fetched.revision[:200], digest=fetched.digest[:200], shape=shape)
    kept = previous.source
    if kept is None or kept.uri:
        return kept if kept is not None and kept.uri == uri else None
    return kept if previous.pod_revision == view.pods.revision else None  # written before `uri` was


def _engine(view: View) -> EngineStatus | None:
    for report in view.engines:
        if report.state is not None and report.pod in view.pods.names:
            state = report.state
            return EngineStatus(version=state.engine[:100], max_tokens=state.model.max_tokens, blocks=state.total)
    same = view.model.status.pod_revision == view.pods.revision
    return view.model.status.engine if same else None


def _scaling(view: View) -> ScalingStatus:
    scaling = view.scaling
    desired = view.wanted if scaling.desired is None or scaling.other_manager is not None else scaling.desired
    return ScalingStatus(
        desired=max(0, desired),
        cold_start=_cold_start(view),
        last_decisions=list(view.scaling.decisions[:DECISIONS_KEPT]),
    )


def _cold_start(view: View) -> ColdStart | None:
    """Of the pods that are ready; kept from before where there are none."""
    times = sorted(view.pods.cold_starts)
    previous = view.model.status.scaling
    if not times:
        return previous.cold_start if previous is not None else None
    p50, p95 = (times[min(len(times) - 1, math.ceil(len(times) * q) - 1)] for q in (0.5, 0.95))
    return ColdStart(p50=show_seconds(p50), p95=show_seconds(p95))
