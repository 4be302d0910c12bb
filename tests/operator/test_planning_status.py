"""Status as a function: conditions from pods, live figures, Tenants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.api.gateway_state import EngineReport
from headrace.api.model import Model
from headrace.api.model_status import ClassStatus, ModelStatus
from headrace.api.slo import BUILTIN_SLO, SloSpec
from headrace.api.tenant import Tenant, TenantUsage
from headrace.planning.installation import Installation
from headrace.planning.judge import References, judge, known_shape
from headrace.planning.live import ClassFigures, class_statuses
from headrace.planning.pods import PodReport, problem_of, report
from headrace.planning.status import ScalingView, View, model_status, stamp
from headrace.planning.tenants import TenantReport, TenantView, key_owners, tenant_status
from headrace_wire.protocol import EngineState, ModelInfo

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}


def pod(name: str = "p", revision: str = "r1", *, ready: bool = False, **status: Any) -> dict[str, Any]:
    conditions = [READY] if ready else []
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"headrace.dev/revision": revision},
        },
        "status": {"conditions": conditions, **status},
    }


def container(name: str, *, restarts: int = 0, **state: Any) -> dict[str, Any]:
    last = state.pop("last", None)
    return {"name": name, "restartCount": restarts, "state": state, "lastState": {"terminated": last} if last else {}}


def model(previous: ModelStatus | None = None, **spec: Any) -> Model:
    made = Model.model_validate(
        {
            "metadata": {"name": "demo", "namespace": "team", "uid": "u", "generation": 3},
            "spec": {"source": {"uri": "builtin://demo"}, **spec},
        }
    )
    return made.model_copy(update={"status": previous}) if previous is not None else made


def view(pods: list[dict[str, Any]], *, of: Model | None = None, wanted: int = 1, **more: Any) -> View:
    of = of or model()
    return View(
        model=of,
        judgement=judge(of, References(), known_shape(of, None)),
        slo=more.pop("slo", BUILTIN_SLO),
        installation=Installation(namespace="hr", engine_image="e"),
        pods=more.pop("report", report(pods, "r1")),
        wanted=wanted,
        now=more.pop("now", NOW),
        **more,
    )


def conditions(status: ModelStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


PULL = container("engine", waiting={"reason": "ErrImagePull", "message": "no such image"})
OOM = container(
    "engine", restarts=2, waiting={"reason": "CrashLoopBackOff"}, last={"exitCode": 137, "reason": "OOMKilled"}
)
WROTE = container(
    "fetch",
    waiting={"reason": "CrashLoopBackOff"},
    last={"exitCode": 1, "message": '{"reason": "SourceNotFound", "file": "config.json", "message": "is missing"}'},
)
SILENT = container("engine", restarts=1, waiting={"reason": "CrashLoopBackOff"}, last={"exitCode": 70, "message": "x"})
FETCHING = container("fetch", running={})
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"containerStatuses": [PULL]}, ("ImagePullFailed", "no such image"), id="image"),
        pytest.param({"containerStatuses": [OOM]}, ("OutOfMemory", "restarts: 2"), id="out of memory"),
        pytest.param({"initContainerStatuses": [WROTE]}, ("SourceNotFound", "config.json: is missing"), id="written"),
        pytest.param({"containerStatuses": [SILENT]}, ("CrashLoop", "status 70"), id="a crash without a word"),
        pytest.param({"initContainerStatuses": [FETCHING]}, None, id="a download takes its time"),
        pytest.param({"conditions": [UNSCHEDULABLE]}, ("Unschedulable", "no GPU"), id="no node"),
        pytest.param(
            {
                "containerStatuses": [
                    container("engine", waiting={"reason": "CreateContainerConfigError", "message": "s"})
                ]
            },
            ("ContainerConfigError", "s"),
            id="a missing secret",
        ),
        pytest.param({"phase": "Failed", "reason": "Evicted"}, ("PodFailed", "Evicted"), id="evicted"),
        pytest.param({}, None, id="new"),
    ],
)
def test_why_a_pod_is_not_ready(status: dict[str, Any], expected: tuple[str, str] | None) -> None:
    found = problem_of(pod(**status))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.reason == expected[0]
        assert expected[1] in found.message


def test_pods_are_sorted_by_revision_and_state() -> None:
    going = pod("going", ready=True)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    seen = report(
        [
            pod("a", ready=True),
            pod("b"),
            pod("c", conditions=[UNSCHEDULABLE]),
            pod("d", "r0", ready=True),
            pod("e", "r0"),
            going,
            pod("done", phase="Succeeded"),
            pod("evicted", phase="Failed"),
        ],
        "r1",
    )
    assert (seen.ready, seen.waiting, seen.unschedulable) == (1, 2, 1)
    assert (seen.older, seen.older_ready, seen.all_ready, seen.terminating) == (2, 1, 2, 1)
    assert seen.cold_starts == (20.0,)
    assert seen.names == ("a",)


def test_what_a_crash_loop_wrote_beats_that_no_node_has_room() -> None:
    seen = report([pod("a", conditions=[UNSCHEDULABLE]), pod("b", initContainerStatuses=[WROTE])], "r1")
    assert [p.reason for p in seen.problems] == ["SourceNotFound", "Unschedulable"]


@pytest.mark.parametrize(
    ("pods", "wanted", "workload", "ready"),
    [
        pytest.param([pod(ready=True)], 1, ("True", "PodsReady"), ("True", "Ready"), id="ready"),
        pytest.param([pod()], 1, ("False", "Starting"), ("False", "Starting"), id="starting"),
        pytest.param([], 1, ("False", "Starting"), ("False", "Starting"), id="no pod yet"),
        pytest.param([], 0, ("True", "ScaledToZero"), ("True", "ScaledToZero"), id="zero by decision"),
        pytest.param(
            [pod("o", "r0", ready=True)], 1, ("False", "RollingOut"), ("False", "RollingOut"), id="only the old"
        ),
        pytest.param(
            [pod("a", ready=True), pod("b", conditions=[UNSCHEDULABLE])],
            2,
            ("True", "PodsReady"),
            ("True", "Ready"),
            id="growth without room does not take readiness away",
        ),
        pytest.param(
            [pod(initContainerStatuses=[WROTE])],
            1,
            ("False", "SourceNotFound"),
            ("False", "SourceNotFound"),
            id="a crash loop is not ready from before",
        ),
    ],
)
def test_readiness(pods: list[dict[str, Any]], wanted: int, workload: tuple[str, str], ready: tuple[str, str]) -> None:
    found = conditions(model_status(view(pods, wanted=wanted)))
    assert found["WorkloadReady"] == workload
    assert found["Ready"] == ready
    assert "Stalled" not in found


def test_an_unknown_shape_makes_ready_unknown_until_a_pod_has_read_it() -> None:
    of = model(source={"uri": "pvc://c/p"})
    found = conditions(model_status(view([], of=of, wanted=0)))
    assert found["MemoryFits"] == ("Unknown", "ShapeUnknown")
    assert found["Ready"] == ("Unknown", "ShapeUnknown")


def test_scaling_never_sets_reconciling() -> None:
    first = model_status(view([pod(ready=True)]))
    assert first.pod_revision == "r1"
    later = model(previous=first)
    grown = conditions(model_status(view([pod(ready=True), pod("b")], of=later, wanted=2)))
    woken = conditions(model_status(view([pod("b")], of=later, wanted=1)))
    assert "Reconciling" not in grown
    assert "Reconciling" not in woken


def test_a_new_revision_does() -> None:
    later = model(previous=model_status(view([pod(ready=True)])).model_copy(update={"pod_revision": "r0"}))
    assert conditions(model_status(view([pod()], of=later)))["Reconciling"][0] == "True"


def test_transition_times_move_only_with_the_status() -> None:
    first = stamp(model_status(view([pod()])), ModelStatus(), NOW)
    previous = ModelStatus.model_validate(first)
    later = NOW + timedelta(minutes=1)
    second = stamp(model_status(view([pod(ready=True)], of=model(previous=previous), now=later)), previous, later)
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert times["Ready"] == "2026-01-01T12:01:00Z"
    assert times["Accepted"] == "2026-01-01T12:00:00Z"
    assert {c["observedGeneration"] for c in second["conditions"]} == {3}
    again = stamp(model_status(view([pod()], now=later)), previous, later)
    assert again == first, "the same observation gives the same status"


@pytest.mark.parametrize(
    ("spec", "scaling", "expected", "says"),
    [
        pytest.param({}, ScalingView(), ("False", "Off"), "spec.replicas 1", id="off"),
        pytest.param(
            {"scaling": {"mode": "Auto", "maxReplicas": 2}},
            ScalingView(),
            ("True", "Active"),
            "between 1 and 2",
            id="auto",
        ),
        pytest.param(
            {"scaling": {"mode": "Advise", "maxReplicas": 2}},
            ScalingView(),
            ("False", "Advising"),
            "not acted",
            id="advise",
        ),
        pytest.param(
            {"scaling": {"mode": "Auto", "maxReplicas": 2}},
            ScalingView(other_manager="hpa"),
            ("False", "Conflict"),
            "'hpa'",
            id="another autoscaler",
        ),
        pytest.param(
            {"scaling": {"mode": "Auto", "maxReplicas": 2}},
            ScalingView(trouble=("Stale", "since noon")),
            ("Unknown", "Stale"),
            "since noon",
            id="no data",
        ),
    ],
)
def test_scaling_active(spec: dict[str, Any], scaling: ScalingView, expected: tuple[str, str], says: str) -> None:
    status = model_status(view([pod(ready=True)], of=model(**spec), scaling=scaling))
    assert conditions(status)["ScalingActive"] == expected
    assert conditions(status)["Ready"][0] == "True", "scaling never enters Ready"
    assert says in next(c.message for c in status.conditions if c.type == "ScalingActive")


def engine_report(pod_name: str = "p", **info: Any) -> EngineReport:
    described = ModelInfo(**{"name": "demo", "max_sequences": 64, "max_batch_tokens": 2048, "max_tokens": 256, **info})
    state = EngineState(engine="1.0", model=described, total=100)
    return EngineReport(pod=pod_name, address="10.0.0.1:8000", age_s=0.1, state=state)


@pytest.mark.parametrize(
    ("reports", "expected", "says"),
    [
        pytest.param([], ("Unknown", "NoReport"), "", id="none"),
        pytest.param([engine_report("stranger")], ("Unknown", "NoReport"), "", id="of a pod that is not ours"),
        pytest.param([engine_report()], ("True", "Conformant"), "1 of 1", id="as asked"),
        pytest.param(
            [engine_report(max_sequences=4)], ("False", "Differs"), "maxSequences is 4 instead of 64", id="other"
        ),
    ],
)
def test_conformance(reports: list[EngineReport], expected: tuple[str, str], says: str) -> None:
    status = model_status(view([pod(ready=True)], engines=reports))
    assert conditions(status)["EngineConformant"] == expected
    assert says in next(c.message for c in status.conditions if c.type == "EngineConformant")


# Live figures

SLO = SloSpec.model_validate(
    {"classes": [{"name": "fast", "ttft": "2s", "tpot": "1s", "maxQueueAge": "1s", "objectivePercent": 90}]}
)


def shown(goodput: int | None, age: str | None, seconds_ago: int = 60) -> list[ClassStatus]:
    at = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [ClassStatus(name="fast", goodput_percent=goodput, queue_age=age, as_of=at)]


@pytest.mark.parametrize(
    ("before", "goodput", "age", "written"),
    [
        pytest.param([], 1.0, None, True, id="first figures"),
        pytest.param([], None, None, False, id="nothing is known"),
        pytest.param(shown(100, "0s"), 0.99, 0.02, False, id="hardly moved"),
        pytest.param(shown(100, "0s"), 0.89, 0.0, True, id="goodput moved by a tenth"),
        pytest.param(shown(91, "0s"), 0.89, 0.0, True, id="goodput crossed its objective"),
        pytest.param(shown(100, "950ms"), 1.0, 1.01, True, id="queue age crossed its target"),
        pytest.param(shown(100, "0s"), 1.0, 0.2, True, id="queue age moved by a tenth of its target"),
        pytest.param(shown(100, "20s"), 1.0, 21.0, False, id="a long queue age hardly moved"),
        pytest.param(shown(100, "2.4s"), 1.0, None, True, id="the queue emptied"),
        pytest.param(shown(50, "20s", 14), 1.0, None, False, id="moved, but written a moment ago"),
        pytest.param(shown(50, "20s", 15), 1.0, None, True, id="moved, and old enough"),
        pytest.param(shown(100, "0s"), None, None, False, id="idle: the last figures stay"),
    ],
)
def test_live_figures_are_written_seldom(
    before: list[ClassStatus], goodput: float | None, age: float | None, written: bool
) -> None:
    after = class_statuses(before, [ClassFigures("fast", goodput, age)], SLO, NOW)
    assert (after != before) is written
    if written:
        assert after[0].as_of == "2026-01-01T12:00:00Z"
        assert class_statuses(after, [ClassFigures("fast", goodput, age)], SLO, NOW + timedelta(minutes=5)) == after


def test_an_empty_queue_is_0s() -> None:
    (shown_now,) = class_statuses([], [ClassFigures("fast", 1.0)], SLO, NOW)
    assert (shown_now.goodput_percent, shown_now.queue_age) == (100, "0s")


def test_a_missed_objective_shows_and_does_not_take_readiness_away() -> None:
    status = model_status(
        view([pod(ready=True)], slo=SLO, figures=[ClassFigures("fast", 0.5, 3.0)], history="over 1h: 70 %")
    )
    found = conditions(status)
    assert found["ServiceLevelMet"] == ("False", "Missed")
    assert found["Ready"] == ("True", "Ready")
    message = next(c.message for c in status.conditions if c.type == "ServiceLevelMet")
    assert "50 % good, objective 90 %" in message
    assert "over 1h" in message


# Tenants


def tenant(name: str = "t", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Tenant:
    metadata = {"name": name, "namespace": "team", "uid": name, "generation": 2, "creationTimestamp": created}
    return Tenant.model_validate({"metadata": metadata, "spec": spec})


def tenant_view(of: Tenant, others: Sequence[Tenant] = (), **more: Any) -> TenantView:
    return TenantView(
        **{
            "tenant": of, "models": {"demo": SLO}, "key_owners": key_owners([of, *others]), "reports": (),
            "usage_written_at": None, "now": NOW, **more,
        }
    )  # fmt: skip


KEY = {"name": "k", "sha256": "a" * 64}


@pytest.mark.parametrize(
    ("of", "others", "expected"),
    [
        pytest.param(tenant(models=[{"name": "demo"}], classes=["fast"]), (), ("True", "Valid"), id="fine"),
        pytest.param(tenant(models=[{"name": "gone"}]), (), ("False", "ModelNotFound"), id="no such model"),
        pytest.param(tenant(models=[{"name": "demo"}]), (), ("False", "ClassUnknown"), id="no class in common"),
        pytest.param(
            tenant(models=[{"name": "demo"}], classes=["fast", "odd"]),
            (),
            ("False", "ClassUnknown"),
            id="a class of nobody",
        ),
        pytest.param(
            tenant(apiKeys=[KEY]),
            (tenant("old", "2025-01-01T00:00:00Z", apiKeys=[KEY]),),
            ("False", "KeyInUse"),
            id="younger",
        ),
        pytest.param(
            tenant(apiKeys=[KEY]),
            (tenant("new", "2027-01-01T00:00:00Z", apiKeys=[KEY]),),
            ("True", "Valid"),
            id="older",
        ),
        pytest.param(
            tenant("b", apiKeys=[KEY]), (tenant("a", apiKeys=[KEY]),), ("False", "KeyInUse"), id="same age: by name"
        ),
    ],
)
def test_a_tenant_is_accepted_or_not(of: Tenant, others: tuple[Tenant, ...], expected: tuple[str, str]) -> None:
    found = {c.type: (c.status, c.reason) for c in tenant_status(tenant_view(of, others=others)).conditions}
    assert found["Accepted"] == expected


@pytest.mark.parametrize(
    ("generations", "expected"),
    [
        pytest.param([], ("Unknown", "NoGateway"), id="no gateway"),
        pytest.param([2, 2], ("True", "Enforced"), id="all"),
        pytest.param([2, 1], ("False", "GatewayBehind"), id="one is behind"),
        pytest.param([2, None], ("False", "GatewayBehind"), id="one is silent"),
        pytest.param([3], ("True", "Enforced"), id="ahead of what we have seen"),
    ],
)
def test_enforced_means_every_ready_gateway(generations: list[int | None], expected: tuple[str, str]) -> None:
    reports = [TenantReport(f"g{i}", generation) for i, generation in enumerate(generations)]
    found = {c.type: (c.status, c.reason) for c in tenant_status(tenant_view(tenant(), reports=reports)).conditions}
    assert found["Enforced"] == expected
    assert found["Ready"] == (("True", "Ready") if expected[0] == "True" else expected)


def test_usage_is_summed_and_written_seldom() -> None:
    one = TenantUsage(requests_last_minute=10, tokens_today=100)
    reports = [TenantReport("a", 2, one), TenantReport("b", 2, one)]
    first = tenant_status(tenant_view(tenant(), reports=reports)).usage
    assert first == TenantUsage(requests_last_minute=20, tokens_today=200)
    of = tenant().model_copy(update={"status": tenant_status(tenant_view(tenant(), reports=reports))})
    little = [TenantReport("a", 2, TenantUsage(requests_last_minute=21, tokens_today=210))]
    assert tenant_status(tenant_view(of, reports=little)).usage == first
    much = [TenantReport("a", 2, TenantUsage(requests_last_minute=0, tokens_today=200))]
    recent = NOW - timedelta(seconds=5)
    assert tenant_status(tenant_view(of, reports=much, usage_written_at=recent)).usage == first
    assert tenant_status(tenant_view(of, reports=much)).usage == TenantUsage(tokens_today=200)


def test_the_report_of_no_pods_is_empty() -> None:
    seen: PodReport = report([], "r1")
    assert (seen.ready, seen.waiting, seen.problems, seen.fetched) == (0, 0, (), None)
