"""The conditions that a Model's pods and engines decide."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.conditions import Condition, ConditionType, Status
from headrace.api.gateway_state import EngineReport
from headrace.api.model import Model
from headrace.planning.cures import cure_of, cured
from headrace.planning.judge import Refusal
from headrace.planning.pods import PodReport, Problem
from headrace.planning.reasons import Why
from headrace_wire.protocol import ModelInfo

LONGEST = 4000  # characters of a message: an API server's refusal quotes what it refuses


def condition(kind: ConditionType, status: Status, reason: str | Why, message: str = "") -> Condition:
    """A condition whose generation and time are filled in later."""
    text = reason.value if isinstance(reason, Why) else reason
    return Condition(type=kind.value, status=status, reason=text, message=message[:LONGEST])


def workload_ready(pods: PodReport, wanted: int, refusal: Refusal | None, zero: str = "") -> Condition:
    """True: a pod of the present revision is ready, or there are none by decision; `zero` says whose and what wakes."""
    kind = ConditionType.WORKLOAD_READY
    total = pods.ready + pods.waiting
    if refusal is not None and total == 0 and not pods.older:
        return condition(kind, "False", Why.NOT_APPLIED, "nothing runs: do what the condition Stalled says first")
    counts = f"{pods.ready} of {max(total, wanted)} pods of revision {pods.revision or 'none'} are ready"
    troubles = "; ".join(map(_trouble, pods.problems[:3]))
    if wanted == 0 and not total and refusal is None:
        return condition(kind, "True", Why.SCALED_TO_ZERO, zero or "zero replicas are wanted")
    if pods.ready:
        return condition(kind, "True", Why.PODS_READY, "; ".join(filter(None, (counts, troubles))))
    if pods.problems:
        first = pods.problems[0]
        return condition(
            kind, "False", first.reason, "; ".join((counts, troubles, cure_of(first.reason, first.message)))
        )
    if pods.older_ready:
        return condition(kind, "False", Why.ROLLING_OUT, f"{counts}; {pods.older_ready} of older revisions serve")
    return condition(kind, "False", Why.STARTING, counts)


def _trouble(problem: Problem) -> str:
    where = f"pod {problem.pod}: " if problem.pod else ""
    return f"{where}{problem.reason}: {problem.message}"


def engine_conformant(model: Model, reports: Sequence[EngineReport], pods: PodReport) -> Condition:
    """Do the engines do what the spec says? The difference by field."""
    kind = ConditionType.ENGINE_CONFORMANT
    seen = [r for r in reports if r.state is not None and r.pod in pods.names]
    if not (pods.ready or pods.waiting or pods.older):
        return condition(kind, "Unknown", Why.NO_ENGINE, "no engine runs; the next one's report tells")
    if not seen:
        message = "no gateway has passed on a report of an engine yet"
        return condition(kind, "Unknown", Why.NO_REPORT, cured(Why.NO_REPORT.value, message))
    for report in sorted(seen, key=lambda r: r.pod):
        differences = _differences(model, report.state.model) if report.state else []
        if differences:
            message = f"pod {report.pod}: {'; '.join(differences)}"
            return condition(kind, "False", Why.DIFFERS, cured(Why.DIFFERS.value, message))
    return condition(kind, "True", Why.CONFORMANT, f"{len(seen)} of {pods.ready} engines report what the spec says")


def _differences(model: Model, info: ModelInfo) -> list[str]:
    spec = model.spec
    expected: dict[str, tuple[object, object]] = {
        "model name": (model.metadata.name, info.name),
        "engine.maxSequences": (spec.engine.max_sequences, info.max_sequences),
        "engine.maxBatchTokens": (spec.engine.max_batch_tokens, info.max_batch_tokens),
    }
    if spec.context.max_tokens is not None:
        expected["context.maxTokens"] = (spec.context.max_tokens, info.max_tokens)
    if spec.precision.dtype != "auto":
        expected["precision.dtype"] = (spec.precision.dtype, info.dtype)
    return [f"{field} is {got} instead of {want}" for field, (want, got) in expected.items() if want != got]
