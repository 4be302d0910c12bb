"""What goes wrong with pods, and what runs beside a changed spec: as tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headrace.api.model import Model
from headrace.api.model_status import ModelStatus, ShapeStatus, SourceStatus
from headrace.api.slo import BUILTIN_SLO, SloSpec
from headrace.planning.installation import Installation
from headrace.planning.judge import Judgement, References, Refusal, judge, known_shape
from headrace.planning.manifests import Plan, Running, plan
from headrace.planning.pods import cold_start_s, problem_of, read_termination, report
from headrace.planning.status import ScalingView, View, model_status
from headrace.planning.template import Inputs
from headrace_wire.shape import BUILTIN_SHAPES, ModelShape, Termination

INSTALLATION = Installation(namespace="hr", engine_image="engine:1")
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SHAPE = BUILTIN_SHAPES["demo"]
NO_SECRET = 'secret "hub" not found'


def model(status: ModelStatus | None = None, **spec: Any) -> Model:
    metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 2}
    made = Model.model_validate({"metadata": metadata, "spec": {"source": {"uri": "builtin://demo"}, **spec}})
    return made if status is None else made.model_copy(update={"status": status})


def pod(name: str = "p", revision: str = "r1", *, created: str = "2026-01-01T00:00:00Z", **status: Any) -> Any:
    labels = {"headrace.dev/revision": revision}
    return {"metadata": {"name": name, "creationTimestamp": created, "labels": labels}, "status": status}


def ended(container: str, message: str = "", *, code: int = 1, waiting: str = "CrashLoopBackOff", **last: Any) -> Any:
    group = "initContainerStatuses" if container == "fetch" else "containerStatuses"
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    terminated = {"exitCode": code, "message": message, **last}
    return {group: [{"name": container, "restartCount": 2, "state": state, "lastState": {"terminated": terminated}}]}


def wrote(reason: str) -> str:
    return msgspec.json.encode(Termination(reason=reason, message="in words")).decode()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *(
            pytest.param(ended(container, wrote(reason)), (reason, "in words"), id=reason)
            for container, reason in (
                ("fetch", "SourceNotFound"),
                ("fetch", "SourceInvalid"),
                ("fetch", "SourceUnauthorized"),
                ("fetch", "SourceUnreachable"),
                ("fetch", "ArchitectureUnsupported"),
                ("fetch", "ModelIncomplete"),
                ("fetch", "OutOfDisk"),
                ("engine", "AddressInvalid"),
                ("engine", "EngineFailed"),
                ("engine", "OutOfMemory"),
                ("engine", "ModelInvalid"),
            )
        ),
        pytest.param(ended("engine", wrote("no word")), ("CrashLoop", "status 1"), id="no condition holds that reason"),
        pytest.param(ended("engine", wrote("R" * 500)), ("CrashLoop", "status 1"), id="a reason without an end"),
        pytest.param(ended("engine", '{"reason": 7}'), ("CrashLoop", "status 1"), id="JSON of another kind"),
        pytest.param(
            ended("engine", 'exec: "headrace-engine": not found', code=128, reason="StartError"),
            ("CrashLoop", "not found"),
            id="an image without the command",
        ),
        pytest.param(ended("engine", code=0), ("CrashLoop", "status 0, restarts: 2"), id="an engine that just ends"),
        pytest.param(ended("engine", code=0, waiting=""), None, id="restarted by its probe, loading again"),
        pytest.param(
            {
                "initContainerStatuses": [
                    {
                        "name": "fetch",
                        "state": {"waiting": {"reason": "CreateContainerConfigError", "message": NO_SECRET}},
                    }
                ]
            },
            ("ContainerConfigError", NO_SECRET),
            id="the Secret is missing",
        ),
        pytest.param(
            {
                "conditions": [
                    {
                        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": 'persistentvolumeclaim "weights" not found',
                    }
                ]
            },
            ("Unschedulable", 'persistentvolumeclaim "weights" not found'),
            id="the claim is missing",
        ),
        pytest.param(
            {
                "conditions": [
                    {
                        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": '0/1 nodes are available: persistentvolumeclaim "weights" not found. not found',
                    }
                ]
            },
            ("Unschedulable", '0/1 nodes are available: persistentvolumeclaim "weights" not found'),
            id="a scheduler that says it twice",
        ),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, None, id="its node went away"),
    ],
)  # fmt: skip
def test_why(status: dict[str, Any], expected: tuple[str, str] | None) -> None:
    found = problem_of(pod(**status))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.reason == expected[0]
        assert expected[1] in found.message


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"layers": 0}, id="no layer"),
        pytest.param({"max_positions": 0}, id="no position"),
        pytest.param({"kv_heads": 3}, id="heads that cannot be shared out"),
        pytest.param({"hidden": -1}, id="negative"),
        pytest.param({"vocab": 2**40}, id="beyond any model"),
        pytest.param({"dtype": "int3"}, id="an unknown format"),
    ],
)
def test_a_shape_that_cannot_be_is_not_believed(change: dict[str, Any]) -> None:
    shape = msgspec.structs.replace(SHAPE, **change)
    found = read_termination(msgspec.json.encode(Termination(shape=shape, revision="r")).decode())
    assert found is not None
    assert found.shape is None
    assert found.revision == "r"


REFUSED = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}


def deployment(replicas: int, *conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "demo"}, "spec": {"replicas": replicas}, "status": {"conditions": list(conditions)}}


READY: dict[str, Any] = {
    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}]
}


@pytest.mark.parametrize(
    ("pods", "made", "unschedulable", "problems"),
    [
        pytest.param([], deployment(1), 0, [], id="not made yet"),
        pytest.param([], deployment(1, REFUSED), 1, ["PodsRefused"], id="the first one may not be made"),
        pytest.param([pod(**READY)], deployment(3, REFUSED), 2, ["PodsRefused"], id="growth beyond the quota"),
        pytest.param(
            [pod("new"), pod("old", "r0", **READY)], deployment(2, REFUSED), 0, ["PodsRefused"], id="in a rollout"
        ),
        pytest.param([pod(**READY)], deployment(1, {**REFUSED, "status": "False"}), 0, [], id="it is over"),
    ],
)
def test_pods_that_may_not_be_made(pods: list[Any], made: Any, unschedulable: int, problems: list[str]) -> None:
    seen = report(pods, "r1", made)
    assert seen.unschedulable == unschedulable
    assert [p.reason for p in seen.problems] == problems


def test_an_eviction_is_forgotten_once_a_later_pod_is_there() -> None:
    evicted = pod("evicted", phase="Failed", reason="Evicted")
    assert [p.reason for p in report([evicted], "r1").problems] == ["PodFailed"]
    later = pod("next", created="2026-01-02T00:00:00Z")
    assert report([evicted, later], "r1").problems == ()


def started(at: str, *, restarts: int = 0) -> list[dict[str, Any]]:
    return [{"name": "engine", "restartCount": restarts, "state": {"running": {"startedAt": at}}}]


@pytest.mark.parametrize(
    ("statuses", "became", "seconds"),
    [
        pytest.param(started("2026-01-01T00:05:00Z"), "2026-01-01T00:07:00Z", 420.0, id="download and loading"),
        pytest.param(
            started("2026-01-01T00:05:00Z"), "2026-01-01T09:00:00Z", None, id="ready again after its node was"
        ),
        pytest.param(started("2026-01-01T00:05:00Z", restarts=1), "2026-01-01T00:07:00Z", None, id="restarted"),
        pytest.param([], "2026-01-01T00:00:09Z", 9.0, id="kubelet has told nothing of containers"),
    ],
)
def test_a_cold_start_is_the_first_readiness(statuses: Any, became: str, seconds: float | None) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": became}
    assert cold_start_s(pod(containerStatuses=statuses, conditions=[ready])) == seconds


# What runs beside a changed spec


def slo(e2e: str) -> SloSpec:
    targets = {"name": "a", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s", "e2e": e2e}
    return SloSpec.model_validate({"classes": [targets]})


def planned(e2e: str, running: Running | None = None, **spec: Any) -> Plan:
    return plan(Inputs(model=model(**spec), slo=slo(e2e), installation=INSTALLATION), 1, running)


def drain(made: Plan) -> str:
    command = made.deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return str(command[command.index("--drain-seconds") + 1])


@pytest.mark.parametrize(
    ("e2e", "spec", "rolls", "drains"),
    [
        pytest.param("60s", {}, False, "60", id="the same"),
        pytest.param("30s", {}, False, "60", id="shorter: what runs waits longer than it must"),
        pytest.param("90s", {}, True, "90", id="longer: what runs would cut requests off"),
        pytest.param("30s", {"engine": {"maxSequences": 3}}, True, "30", id="shorter, with a change that rolls anyway"),
    ],
)
def test_a_shorter_objective_rolls_no_pod(e2e: str, spec: dict[str, Any], rolls: bool, drains: str) -> None:
    before = planned("60s")
    after = planned(e2e, Running(revision=before.revision, drain_s=60), **spec)
    assert (after.revision != before.revision) is rolls
    assert drain(after) == drains
    again = planned(e2e, Running(revision=after.revision, drain_s=int(drains)), **spec)
    assert again.deployment == after.deployment, "the next reconcile plans the same"


@pytest.mark.parametrize(
    ("running", "unavailable"),
    [
        pytest.param(
            Running(revision="old", pods=frozenset({"old"})), 0, id="the old one serves until the new one does"
        ),
        pytest.param(
            Running(revision="old", pods=frozenset({"old"}), serves=False), "100%", id="all old ones are broken"
        ),
        pytest.param(Running(pods=frozenset(), serves=False), 0, id="no pod at all"),
    ],
)
def test_a_rollout_moves_though_every_old_pod_is_unready(running: Running, unavailable: int | str) -> None:
    strategy = planned("60s", running).deployment["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": unavailable, "maxSurge": 1}


def test_starting_pods_of_the_planned_revision_change_no_strategy() -> None:
    revision = planned("60s").revision
    made = planned("60s", Running(revision=revision, drain_s=60, pods=frozenset({revision}), serves=False))
    assert made.deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_users_variables_keep_their_order() -> None:
    env = [{"name": "Z", "value": "1"}, {"name": "A", "value": "$(Z)2"}, {"name": "HOME", "value": "/x"}]
    container = planned("60s", runtime={"env": env}).deployment["spec"]["template"]["spec"]["containers"][0]
    values = {e["name"]: e.get("value") for e in container["env"]}
    names = list(values)
    assert names[0] == "HEADRACE_INSTANCE"
    assert names.index("Z") < names.index("A")
    assert values["HOME"] == "/x"
    assert len(names) == len(container["env"])


def test_no_label_makes_an_engine_look_like_a_gateway() -> None:
    mine = {"app.kubernetes.io/name": "headrace"}
    template = planned("60s", pod={"labels": mine}).deployment["spec"]["template"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"


def test_containers_do_not_run_in_the_group_root() -> None:
    pod_spec = planned("60s").deployment["spec"]["template"]["spec"]
    for container in (*pod_spec["initContainers"], *pod_spec["containers"]):
        assert container["securityContext"]["runAsGroup"] == 65532


# Shapes of models that are at zero


def kept(uri: str, shape: ModelShape = SHAPE) -> ModelStatus:
    status = SourceStatus(uri=uri, revision="1", shape=ShapeStatus(**msgspec.structs.asdict(shape)))
    return ModelStatus(source=status)


@pytest.mark.parametrize(
    ("status", "fetched", "expected"),
    [
        pytest.param(ModelStatus(), None, None, id="never seen"),
        pytest.param(kept("pvc://c/m"), None, SHAPE, id="kept in the status"),
        pytest.param(kept("pvc://c/other"), None, None, id="of another source"),
        pytest.param(
            kept("pvc://c/m"),
            msgspec.structs.replace(SHAPE, layers=9),
            msgspec.structs.replace(SHAPE, layers=9),
            id="a pod has just read it",
        ),
        pytest.param(kept("pvc://c/m", msgspec.structs.replace(SHAPE, layers=0)), None, None, id="spoilt by somebody"),
    ],
)
def test_the_shape_outlives_the_pods(
    status: ModelStatus, fetched: ModelShape | None, expected: ModelShape | None
) -> None:
    of = model(status, source={"uri": "pvc://c/m"})
    assert known_shape(of, fetched) == expected


def view(of: Model, pods: list[Any], **more: Any) -> View:
    judgement = more.pop("judgement", None) or judge(of, References(), known_shape(of, None))
    return View(
        model=of,
        judgement=judgement,
        slo=BUILTIN_SLO,
        installation=INSTALLATION,
        pods=more.pop("report", report(pods, "r1")),
        wanted=more.pop("wanted", 0),
        now=NOW,
        **more,
    )


def test_at_zero_after_a_restart_a_changed_spec_is_judged_by_the_kept_shape() -> None:
    message = msgspec.json.encode(Termination(shape=SHAPE, revision="7")).decode()
    fetch = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "message": message}}}
    source, limits = {"uri": "pvc://c/m"}, {"limits": {"memory": "1Gi"}}
    first = model_status(view(model(source=source), [pod(initContainerStatuses=[fetch], **READY)], wanted=1))
    assert first.source is not None
    stored = ModelStatus.model_validate(first.model_dump(by_alias=True, mode="json"))
    changed = model(stored, source=source, context={"maxTokens": 2**20}, pod={"resources": limits})
    status = model_status(view(changed, []))
    assert next(c.reason for c in status.conditions if c.type == "MemoryFits") == "ContextBeyondModel"
    assert status.source == first.source, "and the shape is kept further"
    elsewhere = model(stored, source={"uri": "pvc://c/other"})
    assert model_status(view(elsewhere, [])).source is None


def test_a_source_that_an_older_version_wrote_is_kept_with_its_revision() -> None:
    old = ModelStatus(pod_revision="r1", source=SourceStatus(revision="7"))
    assert model_status(view(model(old), [])).source == old.source
    assert model_status(view(model(old.model_copy(update={"pod_revision": "r0"})), [])).source is None


@pytest.mark.parametrize(
    ("spec", "other", "says"),
    [
        pytest.param({"replicas": 0}, None, "spec.replicas is 0", id="off"),
        pytest.param(
            {"scaling": {"mode": "Auto", "minReplicas": 0, "maxReplicas": 2}}, None, "request wakes", id="auto"
        ),
        pytest.param({"scaling": {"mode": "Auto", "maxReplicas": 2}}, "kubectl", "'kubectl' wants", id="another's"),
    ],
)
def test_whose_decision_zero_is(spec: dict[str, Any], other: str | None, says: str) -> None:
    status = model_status(view(model(**spec), [], scaling=ScalingView(other_manager=other)))
    ready = next(c for c in status.conditions if c.type == "Ready")
    assert (ready.status, ready.reason) == ("True", "ScaledToZero")
    assert says in ready.message
    assert status.scaling is not None
    assert status.scaling.desired == 0


@pytest.mark.parametrize(
    ("mode", "says", "never"),
    [
        ("Off", "spec.replicas 3 does not hold meanwhile: nothing need change if it shall decide; else", '"Off"'),
        ("Advise", 'set spec.scaling.mode to "Off" and let it decide, or remove', "nothing need change"),
        ("Auto", 'set spec.scaling.mode to "Off" and let it decide, or remove', "nothing need change"),
    ],
    ids=["off", "advise", "auto"],
)
def test_what_ends_another_writers_hold_depends_on_the_mode(mode: str, says: str, never: str) -> None:
    scaling = {"mode": mode} if mode == "Off" else {"mode": mode, "maxReplicas": 5}
    status = model_status(view(model(scaling=scaling, replicas=3), [], scaling=ScalingView(other_manager="kubectl")))
    found = next(c for c in status.conditions if c.type == "ScalingActive")
    assert (found.status, found.reason) == ("False", "Conflict")
    assert "'kubectl' owns .spec.replicas" in found.message and "metadata.managedFields" in found.message
    assert says in found.message and never not in found.message


@pytest.mark.parametrize("mode", ["Off", "Advise", "Auto"])
def test_the_wanted_count_is_always_told(mode: str) -> None:
    scaling = {"mode": mode} if mode == "Off" else {"mode": mode, "maxReplicas": 5}
    status = model_status(view(model(scaling=scaling, replicas=3), [], wanted=3))
    assert status.scaling is not None
    assert status.model_dump(by_alias=True, exclude_none=True)["scaling"]["desired"] == 3


def test_a_stalled_model_does_not_claim_to_scale() -> None:
    judgement = Judgement(refusal=Refusal("ReferenceNotFound", "no SLO"), fit=None)
    of = model(scaling={"mode": "Auto", "maxReplicas": 2})
    status = model_status(view(of, [pod(**READY)], judgement=judgement, wanted=1))
    found = {c.type: (c.status, c.reason) for c in status.conditions}
    assert found["ScalingActive"] == ("False", "NotApplied")
    assert found["WorkloadReady"] == ("True", "PodsReady"), "what runs is left alone"
    off = model_status(view(model(scaling={"mode": "Off"}), [pod(**READY)], judgement=judgement, wanted=1))
    said = next(c for c in off.conditions if c.type == "ScalingActive")
    assert said.reason == "Off" and "spec.replicas 1 holds once the Model is no longer stalled" in said.message


def test_a_message_fits_a_condition() -> None:
    judgement = Judgement(refusal=Refusal("ApplyRefused", "x" * 10**6), fit=None)
    status = model_status(view(model(), [], judgement=judgement))
    assert max(len(c.message) for c in status.conditions) <= 4000
