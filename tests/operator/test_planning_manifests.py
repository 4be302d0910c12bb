"""What a Model's children look like, and when their revision changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.model import Model, ModelSpec
from headrace.api.slo import BUILTIN_SLO, SloSpec
from headrace.planning.installation import Installation
from headrace.planning.manifests import Plan, plan
from headrace.planning.replicas import target
from headrace.planning.revision import pod_revision
from headrace.planning.template import Inputs, drain_seconds

INSTALLATION = Installation(namespace="hr", engine_image="engine:1", hub_endpoint="http://hub.example")


def model(**spec: Any) -> Model:
    return Model.model_validate(
        {
            "metadata": {"name": "demo", "namespace": "team", "uid": "u-1", "generation": 1},
            "spec": {"source": {"uri": "builtin://demo"}, **spec},
        }
    )


def slo(*e2e: str | None) -> SloSpec:
    classes = [
        {"name": f"c{i}", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s", **({"e2e": limit} if limit else {})}
        for i, limit in enumerate(e2e)
    ]
    return SloSpec.model_validate({"classes": classes})


def planned(objective: SloSpec = BUILTIN_SLO, installation: Installation = INSTALLATION, **spec: Any) -> Plan:
    return plan(Inputs(model=model(**spec), slo=objective, installation=installation), replicas=2)


def pod_of(made: Plan) -> dict[str, Any]:
    pod: dict[str, Any] = made.deployment["spec"]["template"]["spec"]
    return pod


def engine_of(made: Plan) -> dict[str, Any]:
    (engine,) = pod_of(made)["containers"]
    return dict(engine)


def fetch_of(made: Plan) -> dict[str, Any]:
    (fetch,) = pod_of(made)["initContainers"]
    return dict(fetch)


def flags(made: Plan) -> dict[str, str]:
    command = engine_of(made)["command"]
    assert command[:3] == ["headrace-engine", "serve", "/models/model"]
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_four_children_with_our_labels_and_one_controller() -> None:
    made = planned()
    assert [c["kind"] for c in made.children] == ["NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment"]
    for child in made.children:
        metadata = child["metadata"]
        assert (metadata["namespace"], metadata["name"]) == ("team", "demo")
        assert metadata["labels"]["headrace.dev/installation"] == "hr"
        assert [(o["kind"], o["uid"], o["controller"]) for o in metadata["ownerReferences"]] == [("Model", "u-1", True)]


def test_service_budget_and_policy_select_the_serving_pods() -> None:
    made = planned()
    policy, service, budget, deployment = made.children
    serving = {"headrace.dev/model": "demo", "headrace.dev/role": "serve"}
    assert service["spec"]["selector"] == serving
    assert service["spec"]["clusterIP"] == "None"
    assert budget["spec"]["selector"]["matchLabels"] == serving
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert policy["spec"]["podSelector"]["matchLabels"] == serving
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "hr"}
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template.items()


def test_a_scraper_is_let_in_where_one_is_named() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    made = planned(installation=Installation(namespace="hr", engine_image="e", scraper=peer))
    assert made.others[0]["spec"]["ingress"][0]["from"][1] == peer


def test_the_pod_fulfils_the_restricted_profile() -> None:
    made = planned()
    pod = pod_of(made)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in (fetch_of(made), engine_of(made)):
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
    assert all("emptyDir" in volume for volume in pod["volumes"])


def test_settings_are_arguments() -> None:
    made = planned(
        engine={"maxSequences": 2, "maxBatchTokens": 512, "memoryPercent": 80},
        context={"maxTokens": 256},
        precision={"dtype": "float32"},
        pod={"resources": {"limits": {"cpu": "1500m", "memory": "2Gi"}}},
    )
    assert flags(made) == {
        "--served-model-name": "demo",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--max-sequences": "2",
        "--max-batch-tokens": "512",
        "--memory-percent": "80",
        "--dtype": "float32",
        "--drain-seconds": "120",
        "--instance": "$(HEADRACE_INSTANCE)",
        "--max-model-len": "256",
        "--threads": "2",
    }
    assert {"name": "OMP_NUM_THREADS", "value": "2"} in engine_of(made)["env"]
    assert engine_of(made)["resources"]["limits"] == {"cpu": "1500m", "memory": "2Gi"}


def test_without_a_cpu_limit_the_engine_counts_itself() -> None:
    assert "--threads" not in flags(planned())


@pytest.mark.parametrize(
    ("e2e", "seconds"),
    [
        pytest.param(["30s"], 30, id="the class's"),
        pytest.param(["30s", "90s"], 90, id="the largest"),
        pytest.param(["30s", None], 120, id="a class without one may take two minutes"),
        pytest.param(["10m", None], 600, id="the longer of both"),
        pytest.param(["1500ms"], 2, id="rounded up"),
    ],
)
def test_the_drain_follows_the_objective(e2e: list[str | None], seconds: int) -> None:
    objective = slo(*e2e)
    assert drain_seconds(objective) == seconds
    made = planned(objective)
    assert flags(made)["--drain-seconds"] == str(seconds)
    grace = pod_of(made)["terminationGracePeriodSeconds"]
    assert grace > seconds + engine_of(made)["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_an_accelerator_is_requested_by_the_engine_alone() -> None:
    made = planned(
        accelerator={"resource": "nvidia.com/gpu", "memory": "80Gi"}, pod={"resources": {"limits": {"memory": "9Gi"}}}
    )
    assert engine_of(made)["resources"]["limits"] == {"memory": "9Gi", "nvidia.com/gpu": "1"}
    assert fetch_of(made)["resources"]["limits"] == {"memory": "9Gi"}


@pytest.mark.parametrize(
    ("source", "command", "env"),
    [
        pytest.param({"uri": "builtin://demo"}, ["builtin://demo", "--into", "/models"], set(), id="builtin"),
        pytest.param(
            {"uri": "pvc://weights/a/b"},
            ["pvc://weights/a/b", "--into", "/models", "--pvc-root", "/source"],
            set(),
            id="claim",
        ),
        pytest.param(
            {"uri": "hf://org/name@main", "secretRef": {"name": "hub", "key": "t"}},
            ["hf://org/name@main", "--into", "/models"],
            {"HF_ENDPOINT", "HF_TOKEN"},
            id="hub",
        ),
    ],
)
def test_the_init_container_fetches(source: dict[str, Any], command: list[str], env: set[str]) -> None:
    made = planned(source=source)
    fetch = fetch_of(made)
    assert fetch["command"] == ["headrace-engine", "fetch", *command]
    assert {e["name"] for e in fetch["env"]} - {"HOME"} == env
    mounts = {m["name"] for m in fetch["volumeMounts"]}
    volumes = {v["name"] for v in pod_of(made)["volumes"]}
    assert mounts == volumes == {m["name"] for m in engine_of(made)["volumeMounts"]}
    if "HF_TOKEN" in env:
        token = next(e for e in fetch["env"] if e["name"] == "HF_TOKEN")
        assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "t"}}
        assert "HF_TOKEN" not in {e["name"] for e in engine_of(made)["env"]}


def test_what_the_user_sets_of_the_pod() -> None:
    made = planned(
        runtime={"image": "mine:2", "env": [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "A", "value": "b"}]},
        pod={
            "labels": {"team": "x"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
            "resources": {"limits": {"cpu": "1"}},
        },
    )
    pod = pod_of(made)
    assert engine_of(made)["image"] == fetch_of(made)["image"] == "mine:2"
    env = {e["name"]: e.get("value") for e in engine_of(made)["env"]}
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["A"] == "b"
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["priorityClassName"] == "high"
    labels = made.deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "x"
    assert "team" not in made.deployment["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        pytest.param({"scaling": {"mode": "Auto", "maxReplicas": 3}}, False, id="scaling"),
        pytest.param({"replicas": 5}, False, id="replicas"),
        pytest.param({"cache": {"scope": "shared"}}, False, id="the cache's scope, which gateways act on"),
        pytest.param({"engine": {"maxSequences": 3}}, True, id="an engine setting"),
        pytest.param({"runtime": {"image": "other"}}, True, id="the image"),
        pytest.param({"pod": {"labels": {"a": "b"}}}, True, id="a pod label"),
    ],
)
def test_the_revision_is_that_of_the_pod(change: dict[str, Any], rolls: bool) -> None:
    before, after = planned(), planned(**change)
    assert (before.revision != after.revision) is rolls
    assert after.deployment["spec"]["template"]["metadata"]["labels"]["headrace.dev/revision"] == after.revision


def test_the_revision_does_not_depend_on_order() -> None:
    assert pod_revision({"a": 1, "b": {"c": 2, "d": 3}}) == pod_revision({"b": {"d": 3, "c": 2}, "a": 1})


def test_rollouts_add_before_they_take_away() -> None:
    strategy = planned().deployment["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


@pytest.mark.parametrize(
    ("scaling", "replicas", "decision", "observed", "wanted"),
    [
        pytest.param({"mode": "Off"}, 3, None, 1, 3, id="off: the spec's"),
        pytest.param({"mode": "Off"}, 3, 7, 1, 3, id="off: a decision left from before does not act"),
        pytest.param({"mode": "Advise", "maxReplicas": 9}, 2, 7, 1, 2, id="advise: the spec's"),
        pytest.param({"mode": "Auto", "minReplicas": 2, "maxReplicas": 9}, 1, None, None, 2, id="created at the least"),
        pytest.param({"mode": "Auto", "minReplicas": 0, "maxReplicas": 9}, 1, None, None, 0, id="created at zero"),
        pytest.param({"mode": "Auto", "maxReplicas": 9}, 1, None, 5, 5, id="restarted: the observed count holds"),
        pytest.param({"mode": "Auto", "maxReplicas": 9}, 1, 6, 5, 6, id="decided"),
        pytest.param({"mode": "Auto", "maxReplicas": 3}, 1, None, 5, 5, id="a lower maximum waits for its decision"),
        pytest.param(
            {"mode": "Auto", "minReplicas": 2, "maxReplicas": 3},
            1,
            1,
            1,
            1,
            id="a higher minimum waits for its decision",
        ),
        pytest.param({"mode": "Auto", "minReplicas": 2, "maxReplicas": 3}, 1, 9, None, 3, id="made anew within bounds"),
    ],
)
def test_target(
    scaling: dict[str, Any], replicas: int, decision: int | None, observed: int | None, wanted: int
) -> None:
    assert target(model(scaling=scaling, replicas=replicas).spec, decision, observed) == wanted


@given(
    low=st.integers(0, 5),
    extra=st.integers(1, 5),
    decision=st.none() | st.integers(0, 20),
)
def test_a_new_deployment_stays_within_its_bounds(low: int, extra: int, decision: int | None) -> None:
    spec = ModelSpec.model_validate(
        {
            "source": {"uri": "builtin://demo"},
            "scaling": {"mode": "Auto", "minReplicas": low, "maxReplicas": low + extra},
        }
    )
    assert low <= target(spec, decision, None) <= low + extra
