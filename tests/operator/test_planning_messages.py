"""Messages that call for somebody name the field and end with what to change."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.api.model import Model
from headrace.api.profile import ProfileSpec
from headrace.api.slo import BUILTIN_SLO
from headrace.controller.actor import UNUSABLE
from headrace.planning.cures import AT_ZERO, CURES, FROM_ZERO, HELD_AT_ZERO, NOT_SERVING, WRITTEN_ZERO, cure_of, cured
from headrace.planning.installation import Installation
from headrace.planning.judge import References, judge
from headrace.planning.live import ClassFigures
from headrace.planning.pods import report
from headrace.planning.reasons import Why
from headrace.planning.status import ScalingView, View, model_status
from headrace.planning.workload import engine_conformant, workload_ready
from headrace_wire.shape import BUILTIN_SHAPES

ENGINE = Path(__file__).parents[2] / "engine" / "headrace_engine"
FIELD = re.compile(
    r"spec\.[a-zA-Z]|metadata\.name|namespaces|kubectl|headrace key new|gateway|deployment", re.IGNORECASE
)
GOOD_OR_PASSING = {
    Why.READY, Why.PENDING, Why.OBSERVED, Why.VALID, Why.ENFORCED, Why.PODS_READY, Why.SCALED_TO_ZERO, Why.STARTING,
    Why.ROLLING_OUT, Why.CONFORMANT, Why.MET, Why.NO_TRAFFIC, Why.ACTIVE, Why.SHAPE_UNKNOWN, Why.NO_ENGINE,
}  # fmt: skip
OWN_WORDS = {
    Why.REFERENCE_NOT_FOUND, Why.PARALLELISM_UNSUPPORTED, Why.PARALLELISM_INVALID, Why.NAME_TAKEN, Why.APPLY_REFUSED,
    Why.KEY_IN_USE, Why.MODEL_NOT_FOUND, Why.CLASS_UNKNOWN, Why.NO_GATEWAY, Why.GATEWAY_BEHIND, Why.NOT_APPLIED,
    Why.SCALING_OFF, Why.ADVISING, Why.ALL_KEYS_EXPIRED,
}  # fmt: skip
"""Reasons whose sentence is written where it is said, cure included; the tests of those places read them."""


def test_every_reason_that_calls_for_somebody_has_a_cure() -> None:
    assert {why.value for why in Why if why not in GOOD_OR_PASSING | OWN_WORDS} <= CURES.keys()


def test_what_the_autoscaler_lacks_has_a_cure() -> None:
    assert {reason.value for reason in UNUSABLE} <= CURES.keys()


def test_every_reason_that_an_engine_writes_has_a_cure() -> None:
    sources = "\n".join(file.read_text() for file in sorted(ENGINE.rglob("*.py")))
    written = set(re.findall(r"StartError\(\s*\"([A-Z]\w+)\"", sources))
    assert {"SourceNotFound", "ModelIncomplete", "OutOfDisk"} <= written, "the engine's errors are still spelt so"
    assert written <= CURES.keys()


@pytest.mark.parametrize("reason", sorted(CURES))
def test_a_cure_names_a_field_or_a_place(reason: str) -> None:
    assert FIELD.search(CURES[reason]) or reason in (Why.CONFLICT.value, Why.INVALID_SPEC.value)
    assert cured(reason, "in words").startswith("in words; ")


def test_what_needs_nobody_is_left_as_it_is() -> None:
    assert cured("Ready", "in words") == "in words" and cure_of("Ready", "") == ""


def model(**spec: Any) -> Model:
    metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 2}
    return Model.model_validate({"metadata": metadata, "spec": {"source": {"uri": "builtin://demo"}, **spec}})


MEMORY = {"pod": {"resources": {"limits": {"memory": "512Mi"}}}}
GPU = {"accelerator": {"memory": "512Mi"}}
SMALL = {"engine": {"maxSequences": 2, "maxBatchTokens": 256}}
TP2 = {"parallelismRef": {"name": "tp2"}}
REFUSED = {
    "no objective": (
        model(serviceLevelRef={"name": "chat"}), None, "ReferenceNotFound",
        "spec.serviceLevelRef.name: no ServiceLevelObjective named 'chat' in this namespace, or it is invalid: create "
        "it here (no reference crosses a namespace), or correct the name",
    ),
    "no profile": (
        model(**TP2), None, "ReferenceNotFound",
        "spec.parallelismRef.name: no ParallelismProfile named 'tp2' in this namespace, or it is invalid: create it "
        "here (no reference crosses a namespace), or correct the name",
    ),
    "two ranks": (
        model(**TP2), ProfileSpec(tensor=2), "ParallelismUnsupported",
        "spec.parallelismRef: 2 tensor x 1 pipeline = 2 ranks; this version starts engines of one rank: take the "
        "reference out, or set spec.tensor or spec.pipeline of ParallelismProfile tp2 so that both are 1",
    ),
    "too little memory of the pod": (
        model(**MEMORY, **SMALL), None, "WeightsTooLarge",
        "raise spec.pod.resources.limits.memory to at least 579Mi",
    ),
    "too little memory of an accelerator": (
        model(**GPU, **SMALL), None, "WeightsTooLarge",
        "raise spec.accelerator.memory to at least",
    ),
    "a context beyond the model": (
        model(context={"maxTokens": 4096}), None, "ContextBeyondModel",
        "spec.context.maxTokens 4096 exceeds the 2048 tokens that the model was trained for: lower it to that",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "profile", "reason", "says"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_says_what_to_change(made: Model, profile: ProfileSpec | None, reason: str, says: str) -> None:
    refusal = judge(made, References(profile=profile), BUILTIN_SHAPES["demo"]).refusal
    assert refusal is not None and refusal.reason == reason
    assert says in refusal.message


@given(
    limit=st.integers(1, 4096),
    percent=st.integers(10, 95),
    sequences=st.integers(1, 256),
    batch=st.integers(256, 65536),
    tokens=st.none() | st.integers(2, 2048),
    where=st.sampled_from(["pod", "accelerator"]),
)
@example(limit=256, percent=90, sequences=2, batch=512, tokens=512, where="pod")
@example(limit=256, percent=90, sequences=2, batch=512, tokens=None, where="pod")
def test_the_memory_that_a_refusal_names_is_accepted_and_a_mebibyte_less_is_not(
    limit: int, percent: int, sequences: int, batch: int, tokens: int | None, where: str
) -> None:
    engine = {"memoryPercent": percent, "maxSequences": sequences, "maxBatchTokens": batch}
    context = {} if tokens is None else {"maxTokens": tokens}

    def refusal(size: str) -> str | None:
        memory = {"pod": {"resources": {"limits": {"memory": size}}}, "accelerator": {"memory": size}}[where]
        judged = judge(model(engine=engine, context=context, **{where: memory}), References(), BUILTIN_SHAPES["demo"])
        return None if judged.refusal is None else judged.refusal.message

    refused = refusal(f"{limit}Mi")
    assume(refused is not None)
    named = re.search(r"raise spec\.\S+ to at least (\d+)Mi", refused or "")
    assert named is not None
    assert refusal(f"{named[1]}Mi") is None
    less = refusal(f"{int(named[1]) - 1}Mi")
    assert less is not None and f"at least {named[1]}Mi" in less, "the least that is named is the same at each limit"


def unscheduled(name: str, message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    meta = {"name": name, "labels": {"headrace.dev/revision": "r1"}}
    return {"metadata": meta, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        pytest.param("0/3 nodes are available: 3 Insufficient memory.", CURES["Unschedulable"], id="no room"),
        pytest.param(
            'persistentvolumeclaim "weights" not found',
            "create the claim, or name another one in spec.source.uri; the pod is scheduled once it is there",
            id="no claim",
        ),
        pytest.param(
            "pod has unbound immediate PersistentVolumeClaims. preemption: none",
            "bind the claim to a volume, or name another one in spec.source.uri; the pod is scheduled once it is there",
            id="a claim without a volume",
        ),
    ],
)
def test_a_cure_is_told_once_for_many_pods(message: str, cure: str) -> None:
    pods = report([unscheduled(f"demo-{number}", message) for number in range(3)], "r1")
    said = workload_ready(pods, 3, None)
    assert (said.status, said.reason) == ("False", "Unschedulable")
    assert said.message.endswith(cure) and said.message.count(cure) == 1
    assert said.message.count(message) == 3 and "demo-0" in said.message


def starting(revision: str) -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": {"headrace.dev/revision": revision}}, "status": {}}


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        pytest.param([], "NoEngine", id="at zero"),
        pytest.param([starting("r1")], "NoReport", id="the first engine starts"),
        pytest.param([starting("r0")], "NoReport", id="one of an older revision is there"),
    ],
)
def test_no_gateway_is_said_to_be_late_where_no_engine_runs(pods: list[dict[str, Any]], reason: str) -> None:
    said = engine_conformant(model(), [], report(pods, "r1"))
    assert (said.status, said.reason) == ("Unknown", reason)
    assert ("gateway" in said.message) == bool(pods)


def missed(pods: int, wanted: int, rival: str | None = None, **scaling: Any) -> str:
    """What ServiceLevelMet says of a missed objective with so many ready pods."""
    of = model(replicas=wanted, scaling={"mode": "Auto", **scaling})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}
    given: list[dict[str, Any]] = [
        {
            "metadata": {
                "name": f"p{n}", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"headrace.dev/revision": "r1"},
            },
            "status": {"conditions": [ready]},
        }
        for n in range(pods)
    ]  # fmt: skip
    view = View(
        model=of, judgement=judge(of, References(), BUILTIN_SHAPES["demo"]), slo=BUILTIN_SLO, wanted=wanted,
        installation=Installation(namespace="hr", engine_image="e"), pods=report(given, "r1"),
        now=datetime(2026, 1, 1, tzinfo=UTC), figures=[ClassFigures("default", 0.5, 3.0)],
        scaling=ScalingView(other_manager=rival),
    )  # fmt: skip
    return next(c.message for c in model_status(view).conditions if c.type == "ServiceLevelMet" and c.status == "False")


OVERRIDE = {"override": {"replicas": 0, "until": "2027-01-01T00:00:00Z"}}
NIGHT = {"schedules": [{"name": "night", "start": "00:00", "end": "00:00", "minReplicas": 0, "maxReplicas": 0}]}
ELSEWHERE = {"schedules": [{"name": "x", "start": "06:00", "end": "20:00", "timeZone": "Mars/Base", "maxReplicas": 2}]}


@pytest.mark.parametrize(
    ("pods", "wanted", "scaling", "says"),
    [
        pytest.param(1, 1, {"minReplicas": 1}, CURES["Missed"], id="replicas serve"),
        pytest.param(0, 1, {"minReplicas": 1}, CURES[NOT_SERVING], id="none is ready"),
        pytest.param(0, 0, {"minReplicas": 0}, CURES[AT_ZERO], id="at zero"),
        pytest.param(0, 1, {"minReplicas": 0}, CURES[NOT_SERVING], id="a cold start goes on"),
        pytest.param(1, 1, {"minReplicas": 0}, CURES[FROM_ZERO], id="it may have been a cold start"),
        pytest.param(0, 0, {"minReplicas": 1, **OVERRIDE}, CURES[HELD_AT_ZERO], id="an override holds zero"),
        pytest.param(0, 0, {"minReplicas": 1, **NIGHT}, CURES[HELD_AT_ZERO], id="a schedule holds zero"),
        pytest.param(1, 0, {"minReplicas": 0, **OVERRIDE}, CURES["Missed"], id="an override just took it to zero"),
        pytest.param(0, 0, {"mode": "Off"}, CURES[WRITTEN_ZERO], id="zero in the spec, off"),
        pytest.param(0, 0, {"mode": "Advise", "minReplicas": 1}, CURES[WRITTEN_ZERO], id="zero in the spec, advised"),
        pytest.param(0, 0, {"minReplicas": 0, **ELSEWHERE}, CURES[NOT_SERVING], id="stalled at zero"),
        pytest.param(0, 0, {"minReplicas": 0, "rival": "hpa"}, CURES[NOT_SERVING], id="another writer wants zero"),
    ],
)
def test_a_missed_objective_says_what_would_help(pods: int, wanted: int, scaling: dict[str, Any], says: str) -> None:
    said = missed(pods, wanted, **scaling)
    assert "50 % good" in said and said.endswith(f"; {says}")
    assert ("maxReplicas" in said) == (pods > 0), "more replicas are no cure where none is ready"
