"""The words of `headrace explain`: a Model's object → text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.api.conditions import ConditionType
from headrace.api.crd import EPOCH
from headrace.api.model import Model
from headrace.api.model_status import ModelStatus
from headrace.api.quantities import seconds, show_count
from headrace.api.schedule import Schedule
from headrace.api.slo import BUILTIN_SLO, ServiceLevelObjective
from headrace.api.tenant import Tenant
from headrace.planning.reasons import Why
from headrace.scaling.outlook import outlook
from headrace.scaling.types import Policy

Row = Sequence[str]


def report(model: Model, slo: ServiceLevelObjective | None, at: float | None = None) -> str:
    """All that the object says, in sections. `slo`: the objective that the Model names, if it exists; `at`: unix
    seconds, by which schedules and an override hold."""
    sections = (
        ("Conditions", _conditions(model)),
        ("Replicas", _replicas(model, at)),
        ("Memory, on the fullest rank", _memory(model)),
        (f"Service level ({_slo_title(model, slo)})", _service_level(model, slo)),
        ("Last scaling decisions, newest first", _decisions(model)),
        ("What would change the number of replicas", _outlook(model, slo, at)),
    )
    lines = [_headline(model)]
    for title, body in sections:
        lines += ["", title, *(f"  {line}".rstrip() for line in body)]
    return "\n".join(lines)


def _headline(model: Model) -> str:
    ready = next((c for c in model.status.conditions if c.type == "Ready"), None)
    state = "its state is not known yet"
    if ready is not None and not unseen(model):
        since = "" if ready.last_transition_time in (None, "", EPOCH) else f" since {ready.last_transition_time}"
        state = {"True": "ready", "False": "not ready"}.get(ready.status, "not known to be ready")
        state += f" ({ready.reason}){since}"
    text = f"Model {model.metadata.name} in namespace {model.metadata.namespace}: {state}"
    if unseen(model):
        return f"{text}\nIt is served by nothing: {why_unseen(model.metadata.namespace)}"
    seen, wanted = model.status.observed_generation, model.metadata.generation
    return f"{text}\nThe operator has not yet read generation {wanted} of the spec." if seen < wanted else text


def unseen(obj: Model | Tenant) -> bool:
    """No operator has ever written its status: what stands there is the definition's default."""
    status = obj.status
    if status.observed_generation >= 0 or (isinstance(status, ModelStatus) and status.scaling is not None):
        return False
    return all(c.reason == Why.PENDING.value for c in status.conditions)


def why_unseen(namespace: str) -> str:
    """Both reasons, and what changes either."""
    return (
        "no operator has seen it yet. Either the operator does not run (`kubectl get pods -A -l "
        f"app.kubernetes.io/name=headrace`), or namespace {namespace} is not among `namespaces` of any "
        "installation: `helm upgrade headrace charts/headrace -n headrace --reuse-values --set "
        f"'namespaces={{PRESENT,{namespace}}}'` with its present ones for PRESENT"
    )


def _conditions(model: Model) -> Iterator[str]:
    if unseen(model):
        yield "none yet"
        return
    rows = [(c.type, c.status, c.reason, c.message) for c in model.status.conditions]
    yield from table(rows) if rows else ["none yet"]


def _replicas(model: Model, at: float | None) -> Iterator[str]:
    status, scaling = model.status, model.spec.scaling
    if scaling.mode == "Off":
        why = _why_idle(model)
        idle = f", which does not hold while {why}" if why else ""
        yield f"{model.spec.replicas} wanted by spec.replicas (scaling.mode Off){idle}, {status.ready_replicas} ready"
        if scaling.override is not None or scaling.schedules:
            yield "schedules and an override hold under the modes Auto and Advise alone"
    elif unseen(model):
        bounds = scaling.bounds(at)
        yield f"not decided yet; spec.scaling asks for mode {scaling.mode}, between {bounds.least} and {bounds.most}"
    else:
        desired = status.scaling.desired if status.scaling is not None else status.replicas
        yield f"{desired} wanted, {status.replicas} there, {status.ready_replicas} ready"
        acts = "the autoscaler acts" if scaling.mode == "Auto" else "the autoscaler only records what it would do"
        acts = f"the autoscaler does not act while {why}" if (why := _why_idle(model)) else acts
        bounds = scaling.bounds(at)
        by = f" by {bounds.detail}" if bounds.by else ""
        yield f"mode {scaling.mode}: {acts}, between {bounds.least} and {bounds.most}{by}"
        yield from (f"{schedule}: {_bounds(schedule)}" for schedule in scaling.schedules)
        if scaling.override is not None:
            yield f"{scaling.override}" + ("" if bounds.by == "override" else ": over")
    if status.scaling is not None and status.scaling.cold_start is not None:
        cold = status.scaling.cold_start
        yield f"a new replica takes {cold.p50} (median) to {cold.p95} (95th percentile) from creation to ready"


def _rival(model: Model) -> str | None:
    """What is said of another writer of the number of replicas, where there is one."""
    acting = (c for c in model.status.conditions if c.type == ConditionType.SCALING_ACTIVE.value)
    return next((c.message for c in acting if c.reason == Why.CONFLICT.value), None)


def _stalled(model: Model) -> str | None:
    """What must be changed before anything is applied, where something must."""
    stalled = (c for c in model.status.conditions if c.type == ConditionType.STALLED.value and c.status == "True")
    return next((c.message for c in stalled), None)


def _why_idle(model: Model) -> str:
    """What keeps spec.replicas and the autoscaler's number from holding; "" where nothing does."""
    if _rival(model) is not None:
        return "another writer sets the number"
    return "" if _stalled(model) is None else "the Model is stalled"


def _bounds(schedule: Schedule) -> str:
    least = None if schedule.min_replicas is None else f"at least {schedule.min_replicas}"
    most = None if schedule.max_replicas is None else f"at most {schedule.max_replicas}"
    return ", ".join(filter(None, (least, most)))


def _memory(model: Model) -> Iterator[str]:
    memory = model.status.memory
    if memory is None:
        yield "not computed yet: the model's shape is not known"
        return
    if not memory.capacity:
        yield f"{memory.weights} weights + {memory.overhead} overhead; without a memory limit the engine sizes its pool"
        yield f"a token takes {memory.kv_per_token} of KV"
        return
    yield f"{memory.capacity} = {memory.weights} weights + {memory.overhead} overhead + {memory.kv_pool} for KV"
    yield (
        f"a token takes {memory.kv_per_token} of KV, so "
        f"{show_count(memory.full_length_sequences, 'request')} of full length fit at one time "
        f"(engine.maxSequences is {model.spec.engine.max_sequences})"
    )


def _slo_title(model: Model, slo: ServiceLevelObjective | None) -> str:
    reference = model.spec.service_level_ref
    if reference is None:
        return "built in"
    return reference.name if slo is not None else f"{reference.name}, which was not found: built in"


def _service_level(model: Model, slo: ServiceLevelObjective | None) -> Iterator[str]:
    seen = {c.name: c for c in model.status.service_level}
    for item in (slo.spec if slo is not None else BUILTIN_SLO).classes:
        shown = seen.get(item.name)
        goodput = "unknown" if shown is None or shown.goodput_percent is None else f"{shown.goodput_percent} %"
        age = shown.queue_age if shown is not None and shown.queue_age else "unknown"
        most = f"at most {item.max_queue_age}"
        waits = f"nothing waits (queue age {most})" if age == "0s" else f"queue age {age} ({most})"
        as_of = f", as of {shown.as_of}" if shown is not None and shown.as_of else ""
        yield (
            f"{item.name}: goodput {goodput} (objective {item.objective_percent} %), {waits}, "
            f"targets TTFT {item.ttft}, TPOT {item.tpot}{as_of}"
        )


def _decisions(model: Model) -> Iterator[str]:
    scaling = model.status.scaling
    if scaling is None or not scaling.last_decisions:
        yield "none yet"
        return
    for number, decision in enumerate(scaling.last_decisions):
        if number:
            yield ""
        yield from _decision(decision)


def _decision(decision: Mapping[str, Any]) -> Iterator[str]:
    before, after = decision.get("from", "?"), decision.get("to", "?")
    yield f"{decision.get('at', 'at an unknown time')}: {before} → {after} replicas, {decision.get('reason', '?')}"
    winner = decision.get("winner")
    rows = []
    for candidate in _maps(decision.get("candidates")):
        name, replicas = str(candidate.get("name", "?")), candidate.get("replicas")
        mark = "→" if name == winner else " "
        rows.append((f"{mark} {name}", "-" if replicas is None else str(replicas), str(candidate.get("detail", ""))))
    yield from (f"  {line}" for line in table(rows))
    for guard in _maps(decision.get("guards")):
        yield f"  guard {guard.get('name', '?')}: {guard.get('effect', '')}, {guard.get('detail', '')}"


def _outlook(model: Model, slo: ServiceLevelObjective | None, at: float | None) -> Iterator[str]:
    scaling, status = model.spec.scaling, model.status
    if unseen(model):
        yield "nothing, before an operator has seen it"
        return
    if (rival := _rival(model)) is not None:
        yield f"only the other writer, until it lets go: {rival}"
        return
    if (stalled := _stalled(model)) is not None:
        yield f"nothing, before the condition Stalled is gone: {stalled}"
        return
    if scaling.mode == "Off":
        yield "only spec.replicas, or `kubectl scale`: scaling.mode is Off"
        return
    if scaling.mode == "Advise":
        yield "only spec.replicas, or `kubectl scale`: scaling.mode is Advise. What the autoscaler would record:"
    current = status.scaling.desired if status.scaling is not None else status.replicas
    told = outlook(Policy.of(model, slo, at), current, _cold_start(model))
    yield from (f"{name}: {text}" for name, text in zip(("up", "down", "to zero"), told.values(), strict=True))


def _cold_start(model: Model) -> float | None:
    scaling = model.status.scaling
    if scaling is None or scaling.cold_start is None:
        return None
    try:
        return seconds(scaling.cold_start.p95)
    except ValueError:
        return None


def _maps(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list | tuple):
        yield from (item for item in value if isinstance(item, dict))


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Columns of equal width; the last one is as long as it likes."""
    kept = list(rows)
    widths = [max(len(row[i]) for row in kept) for i in range(len(kept[0]) - 1)] if kept else []
    for row in kept:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
