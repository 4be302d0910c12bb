"""The chart `headrace`: lint, schema, what it renders, and that its rights are exactly enough."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import binaries, cache, toolchain
from cluster.apionly import ApiServer
from headrace.cli import gateway as gateway_cli
from headrace.cli import operator as operator_cli
from headrace.cluster.client import Object, connect
from headrace.cluster.errors import ApiError
from headrace.cluster.resources import DEPLOYMENTS, MODELS, PODS, SERVICES
from headrace.testing.running import bench, running, settings_for

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/headrace"
SAMPLES = [ROOT / "charts/samples" / f"{name}.yaml" for name in ("slo", "tenants", "profile", "model")]
KUBE_VERSION = "1.34.0"


@pytest.fixture(scope="session")
def helm() -> Path:
    """The helm client, which takes minutes to build: a test does not build it."""
    folder = cache.find("helm", binaries.key(binaries.HELM, toolchain.find_go().version))
    if folder is None:
        pytest.fail("helm is not built; run `make setup`: tests never skip what they need", pytrace=False)
    return folder / "helm"


def run_helm(helm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(helm), *arguments], capture_output=True, text=True, check=False, timeout=60)


def render(helm: Path, namespace: str = "headrace", **values: Any) -> list[Object]:
    sets = [
        part
        for key, value in values.items()
        for part in ("--set-json", f"{key.replace('__', '.')}={json.dumps(value)}")
    ]
    done = run_helm(helm, "template", "headrace", str(CHART), "-n", namespace, "--kube-version", KUBE_VERSION, *sets)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def find(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def test_lint_finds_nothing(helm: Path) -> None:
    done = run_helm(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param({"gateway__replicas": 2}, "gateway/replicas", id="two gateways need shared quotas"),
        pytest.param({"operator__replicas": 0}, "operator/replicas", id="no operator"),
        pytest.param({"namespaces": ["Upper"]}, "namespaces/0", id="no namespace's name"),
        pytest.param({"oprator": {}}, "oprator", id="a misspelt value"),
        pytest.param({"images__engine": ""}, "images/engine", id="no engine image"),
        pytest.param({"logFormat": "xml"}, "logFormat", id="a format of logs that is none"),
        pytest.param({"gateway__logLevel": "info"}, "gateway/logLevel", id="a level of logs that is none"),
    ],
)
def test_the_schema_refuses(helm: Path, values: dict[str, Any], says: str) -> None:
    sets = [
        part
        for key, value in values.items()
        for part in ("--set-json", f"{key.replace('__', '.')}={json.dumps(value)}")
    ]
    done = run_helm(helm, "template", "headrace", str(CHART), "--kube-version", KUBE_VERSION, *sets)
    assert done.returncode != 0
    assert says.replace("/", ".") in done.stderr.replace("/", "."), done.stderr


def test_rights_are_namespaced_and_touch_no_secret(helm: Path) -> None:
    objects = render(helm, namespaces=["a", "b"])
    assert not {o["kind"] for o in objects} & {"ClusterRole", "ClusterRoleBinding"}
    rules = [rule for o in objects if o["kind"] == "Role" for rule in o["rules"]]
    assert all("secrets" not in rule["resources"] and "*" not in rule["resources"] + rule["verbs"] for rule in rules)
    roles = {(o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects if o["kind"] == "Role"}
    parts = itertools.product(("a", "b"), ("headrace-operator-headrace", "headrace-gateway-headrace"))
    assert roles == {*parts, ("headrace", "headrace-operator")}


def test_pods_fulfil_the_restricted_profile(helm: Path) -> None:
    for deployment in [o for o in render(helm, ha=True) if o["kind"] == "Deployment"]:
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["runAsGroup"] == 65532
            assert {"startupProbe", "readinessProbe", "livenessProbe", "resources"} <= container.keys()


def test_ha_gives_two_operators_with_a_budget(helm: Path) -> None:
    plain, ha = render(helm), render(helm, ha=True)
    assert find(plain, "Deployment", "headrace-operator")["spec"]["replicas"] == 1
    assert find(ha, "Deployment", "headrace-operator")["spec"]["replicas"] == 2
    assert find(ha, "PodDisruptionBudget", "headrace-operator")["spec"]["maxUnavailable"] == 1
    assert not [o for o in plain if o["kind"] == "PodDisruptionBudget"]


def test_the_command_lines_are_understood(helm: Path) -> None:
    commands = argparse.ArgumentParser()
    subcommands = commands.add_subparsers()
    operator_cli.register(subcommands)
    gateway_cli.register(subcommands)
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    objects = render(helm, "hr", namespaces=["b", "a"], metrics__scraper=peer, operator__prometheusUrl="http://p:9090")
    for name in ("operator", "gateway"):
        (container,) = find(objects, "Deployment", f"headrace-{name}")["spec"]["template"]["spec"]["containers"]
        arguments = commands.parse_args(container["args"])
        assert arguments.namespaces == "a,b"
        if name == "operator":
            settings = operator_cli.settings_of(arguments)
            assert settings.namespaces == ("a", "b")
            assert settings.installation.namespace == "hr"
            assert settings.installation.scraper == peer
            assert settings.prometheus_url == "http://p:9090"


def test_logs_are_json_unless_text_is_asked_for(helm: Path) -> None:
    changed = {"logFormat": "text", "operator__logLevel": "ERROR", "gateway__logLevel": "WARNING"}
    told = {"operator": "ERROR", "gateway": "WARNING"}
    for values, style in (({}, "json"), (changed, "text")):
        objects = render(helm, **values)
        for name in ("operator", "gateway"):
            (container,) = find(objects, "Deployment", f"headrace-{name}")["spec"]["template"]["spec"]["containers"]
            assert f"--log-format={style}" in container["args"]
            level = told[name] if values else "INFO"
            assert f"--log-level={level}" in container["args"]


def test_pod_monitors_are_off_unless_asked_for(helm: Path) -> None:
    assert not [o for o in render(helm) if o["kind"] == "PodMonitor"]
    monitors = [o for o in render(helm, metrics__podMonitors=True) if o["kind"] == "PodMonitor"]
    assert [m["metadata"]["name"] for m in monitors] == ["headrace-gateway", "headrace-operator", "headrace-engines"]


def test_the_api_server_takes_all_of_it(helm: Path, apiserver: ApiServer, namespace: str) -> None:
    objects = render(helm, namespace, ha=True, metrics__scraper={"podSelector": {}})
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    done = apiserver.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=listed)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_accepted(apiserver: ApiServer, namespace: str, sample: Path) -> None:
    done = apiserver.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", str(sample))
    assert done.returncode == 0, done.stderr


def _account(apiserver: ApiServer, namespace: str, name: str) -> str:
    user = f"system:serviceaccount:{namespace}:{name}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return str(apiserver.kubeconfig_as(user, groups))


def _grant(helm: Path, apiserver: ApiServer, namespace: str) -> None:
    objects = [o for o in render(helm, namespace) if o["kind"] in ("Role", "RoleBinding", "ServiceAccount")]
    done = apiserver.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    assert done.returncode == 0, done.stderr


def test_the_operator_lives_on_the_charts_rights(
    helm: Path, apiserver: ApiServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    _grant(helm, apiserver, namespace)

    async def main() -> None:
        settings = settings_for(_account(apiserver, namespace, "headrace-operator"), namespace)
        async with bench(str(apiserver.kubeconfig), namespace) as on, running(settings):
            for sample in SAMPLES:
                for document in yaml.safe_load_all(sample.read_text()):
                    path = f"/apis/headrace.dev/v1alpha1/namespaces/{namespace}/{_plural(document['kind'])}"
                    await on.client.request("POST", path, body=document)
            await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
            for kind, names in (("tenants", ("search", "guest")), ("servicelevelobjectives", ("chat",))):
                for name in names:
                    path = f"/apis/headrace.dev/v1alpha1/namespaces/{namespace}/{kind}/{name}"
                    assert (await on.client.request("GET", path))["status"]["observedGeneration"] == 1, (kind, name)
            child = await on.get(SERVICES) or {}
            await on.create(
                SERVICES,
                "stray",
                {**child, "metadata": {k: child["metadata"][k] for k in ("labels", "ownerReferences")}},
            )

            async def pruned() -> bool:
                return await on.get(SERVICES, "stray") is None

            await on.until("the stray child pruned", pruned)

    asyncio.run(main())
    refused = [r.getMessage() for r in caplog.records if "403" in r.getMessage() or "orbidden" in r.getMessage()]
    assert refused == []


def _plural(kind: str) -> str:
    return "parallelismprofiles" if kind == "ParallelismProfile" else f"{kind.lower()}s"


@pytest.mark.parametrize("account", ["headrace-operator", "headrace-gateway"])
def test_nobody_may_read_secrets(helm: Path, apiserver: ApiServer, namespace: str, account: str) -> None:
    _grant(helm, apiserver, namespace)

    async def main() -> None:
        async with await connect(_account(apiserver, namespace, account)) as client:
            for path in (f"/api/v1/namespaces/{namespace}/secrets", "/api/v1/namespaces", PODS.path("default")):
                with pytest.raises(ApiError) as refused:
                    await client.request("GET", path)
                assert refused.value.status == 403
            with pytest.raises(ApiError) as refused:
                await client.list(DEPLOYMENTS, "default")
            assert refused.value.status == 403

    asyncio.run(main())
