"""The chart against a real API server: its rights are all used, and it goes from any values to any others."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from cluster import binaries, cache, toolchain
from cluster.apionly import ApiServer
from headrace.cluster.client import Object, connect
from headrace.cluster.events import Note, Recorder
from headrace.cluster.resources import MODELS
from headrace.testing.running import running, settings_for

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/headrace"
CRDS = ROOT / "charts/headrace-crds"
KUBE_VERSION = "1.34.0"
HPA = "horizontalpodautoscalers"
Right = tuple[str, str, str]  # API group, resource, verb


@pytest.fixture(scope="module")
def helm() -> Path:
    """The helm client, which takes minutes to build: a test does not build it."""
    folder = cache.find("helm", binaries.key(binaries.HELM, toolchain.find_go().version))
    if folder is None:
        pytest.fail("helm is not built; run `make setup`: tests never skip what they need", pytrace=False)
    return folder / "helm"


def render(helm: Path, namespace: str, **values: Any) -> list[Object]:
    sets = [part for key, value in values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    command = [str(helm), "template", "headrace", str(CHART), "-n", namespace, "--kube-version", KUBE_VERSION, *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def granted(objects: list[Object], account: str) -> set[Right]:
    """What the Roles of a service account allow."""
    names = {o["metadata"]["name"] for o in objects if o["kind"] == "Role"}
    mine = {n for n in names if n.startswith(account)}
    return {
        (group, resource, verb)
        for o in objects
        if o["kind"] == "Role" and o["metadata"]["name"] in mine
        for rule in o["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/namespaces/[^/]+/(?P<plural>[^/?]+)(?P<name>/[^/?]+)?(?P<sub>/[^/?]+)?$"
)


def rights_of(method: str, url: str, params: Any) -> set[Right]:
    """The rights that a request needs; a server-side apply needs two, as it may create."""
    path, _, query = str(url).partition("?")
    found = PATH.search(path)
    if found is None:
        return set()
    group, resource = found["group"] or "", found["plural"] + (found["sub"] or "")
    watching = "watch=" in query or "watch" in (params or {})
    if method == "GET":
        verb = "watch" if watching else "get" if found["name"] else "list"
        return {(group, resource, verb)}
    if method == "PATCH" and not found["sub"] and "fieldManager" in (params or {}):
        return {(group, resource, "patch"), (group, resource, "create")}
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    return {(group, resource, verb)}


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Right]]:
    """The rights that requests of this process used."""
    used: set[Right] = set()
    original = aiohttp.ClientSession._request

    async def request(self: aiohttp.ClientSession, method: str, url: Any, **more: Any) -> aiohttp.ClientResponse:
        used.update(rights_of(method.upper(), str(url), more.get("params")))
        return await original(self, method, url, **more)

    with monkeypatch.context() as patch:
        patch.setattr(aiohttp.ClientSession, "_request", request)
        yield used


def _grant(apiserver: ApiServer, objects: list[Object]) -> None:
    kinds = ("Role", "RoleBinding", "ServiceAccount")
    listed = {"apiVersion": "v1", "kind": "List", "items": [o for o in objects if o["kind"] in kinds]}
    done = apiserver.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
    assert done.returncode == 0, done.stderr


def _account(apiserver: ApiServer, namespace: str, name: str) -> str:
    user = f"system:serviceaccount:{namespace}:{name}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return str(apiserver.kubeconfig_as(user, groups))


def _write(apiserver: ApiServer, namespace: str, *documents: Object) -> None:
    """By kubectl, so that it does not count as a request of this process."""
    text = "\n---\n".join(json.dumps(document) for document in documents)
    done = apiserver.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


def _document(kind: str, spec: Object) -> Object:
    return {"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": {"name": "demo"}, "spec": spec}


def _everything() -> list[Object]:
    targets = {"name": "a", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s"}
    return [
        _document("ServiceLevelObjective", {"classes": [targets]}),
        _document("ParallelismProfile", {"tensor": 1}),
        _document("Tenant", {"models": [{"name": "demo"}], "classes": ["a"]}),
        _document(
            "Model",
            {
                "source": {"uri": "builtin://demo"},
                "serviceLevelRef": {"name": "demo"},
                "parallelismRef": {"name": "demo"},
            },
        ),
        _autoscaled(),
    ]


def _autoscaled() -> Object:
    """Whose namespace's quotas are read."""
    scaling = {"mode": "Auto", "maxReplicas": 2}
    model = _document("Model", {"source": {"uri": "builtin://demo"}, "scaling": scaling})
    return {**model, "metadata": {"name": "auto"}}


async def _eventually(what: str, check: Any) -> None:
    for _ in range(400):
        if await asyncio.to_thread(check):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not seen: {what}")


def test_the_operator_uses_every_right_that_it_has(
    helm: Path, apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that no request needs is one too many; that none is missing, the tests beside show."""
    objects = render(helm, namespace)
    _grant(apiserver, objects)
    config = _account(apiserver, namespace, "headrace-operator")

    def kubectl(*arguments: str) -> str:
        return apiserver.kubectl("-n", namespace, *arguments).stdout

    async def main() -> None:
        async with running(settings_for(config, namespace)):
            await asyncio.to_thread(_write, apiserver, namespace, *_everything())
            for kind in ("models", "tenants", "slo", "par"):
                path = "jsonpath={.status.observedGeneration}"
                await _eventually(
                    f"status of {kind}", lambda kind=kind, path=path: kubectl("get", kind, "demo", "-o", path) == "1"
                )
            for kind in ("deployment", "service", "poddisruptionbudget", "networkpolicy"):
                await asyncio.to_thread(_stray, apiserver, namespace, kind)
                await _eventually(
                    f"a stray {kind} pruned", lambda kind=kind: kubectl("get", kind, "stray", "-o", "name") == ""
                )
            await asyncio.to_thread(_ready_pod, apiserver, namespace)
            await _eventually("the pod", lambda: kubectl("get", "mdl", "demo", "-o", READY) == "1")
            kubectl("patch", "mdl", "demo", "--type=merge", "-p", '{"spec": {"replicas": 0}}')
            await _eventually("the pod marked to go first", lambda: ("", "pods", "patch") in used)
            await asyncio.to_thread(_scale_as_autoscaler, apiserver, namespace)
            await _eventually("the autoscalers listed", lambda: ("autoscaling", HPA, "list") in used)
            async with await connect(config) as client:
                recorder = Recorder(client, "me", lambda: None)
                model = await client.get(MODELS, namespace, "demo")
                for _ in range(2):  # the second lengthens the series of the first
                    await recorder.write(MODELS, model, Note("Normal", "Tested", "Test", "a note"))
            await _eventually("the quotas listed", lambda: ("", "resourcequotas", "list") in used)
            await _eventually("a renewal of the Lease", lambda: ("coordination.k8s.io", "leases", "update") in used)

    with recording(monkeypatch) as used:
        asyncio.run(main())
    rights = granted(objects, "headrace-operator")
    assert rights - used == set(), "rights that nothing used"
    assert used - rights == set(), "requests beyond the rights"


def test_the_gateway_may_only_read_what_it_watches(helm: Path) -> None:
    watched = [("headrace.dev", p) for p in ("models", "servicelevelobjectives", "tenants")]
    expected = {(g, p, v) for g, p in [*watched, ("discovery.k8s.io", "endpointslices")] for v in ("list", "watch")}
    assert granted(render(helm, "hr"), "headrace-gateway") == expected


READY = "jsonpath={.status.readyReplicas}"


def _ready_pod(apiserver: ApiServer, namespace: str) -> None:
    """As kubelet would have it."""
    found = json.loads(apiserver.kubectl("-n", namespace, "get", "deployment", "demo", "-o", "json").stdout)
    template = found["spec"]["template"]
    containers = [{"name": "engine", "image": "engine:test"}]
    metadata = {"name": "serving", "labels": template["metadata"]["labels"]}
    _write(
        apiserver,
        namespace,
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}},
    )
    status = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    patched = apiserver.kubectl("-n", namespace, "patch", "pod", "serving", "--subresource=status", "-p", status)
    assert patched.returncode == 0, patched.stderr


def _scale_as_autoscaler(apiserver: ApiServer, namespace: str) -> None:
    """As a HorizontalPodAutoscaler does, which writes under the name of the program that it runs in."""
    what = ("deployment", "demo", "--subresource=scale", "--field-manager=kube-controller-manager")
    scaled = apiserver.kubectl("-n", namespace, "patch", *what, "--type=merge", "-p", '{"spec": {"replicas": 3}}')
    assert scaled.returncode == 0, scaled.stderr


def _stray(apiserver: ApiServer, namespace: str, kind: str) -> None:
    found = json.loads(apiserver.kubectl("-n", namespace, "get", kind, "demo", "-o", "json").stdout)
    metadata = {"name": "stray", **{k: found["metadata"][k] for k in ("labels", "ownerReferences")}}
    body = {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": metadata, "spec": found["spec"]}
    created = apiserver.kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(body))
    assert created.returncode == 0, created.stderr


# Values to other values, with the real helm

RICH = {
    "ha": True,
    "operator": {"replicas": 3, "logLevel": "DEBUG", "hubEndpoint": "http://hub.example", "nodeSelector": {"a": "b"}},
    "gateway": {
        "args": ["--log-level=DEBUG"],
        "service": {"type": "NodePort", "port": 8443},
        "clients": [{"podSelector": {}}],
    },
    "metrics": {"scraper": {"podSelector": {"matchLabels": {"app": "prometheus"}}}},
    "images": {"pullSecrets": ["registry"]},
}


class Release:
    """A release named `headrace` in a namespace of the API server."""

    def __init__(self, helm: Path, apiserver: ApiServer, namespace: str):
        self._command = [str(helm), "--kubeconfig", str(apiserver.kubeconfig), "-n", namespace]

    def __call__(self, *arguments: str, values: Any = None) -> None:
        flags = [] if values is None else ["-f", "-"]
        done = subprocess.run(
            [*self._command, *arguments, *flags],
            input=json.dumps(values or {}), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_from_one_values_set_to_another_back_and_away(helm: Path, apiserver: ApiServer, namespace: str) -> None:
    """Selectors and role references never change: each step is an update, and nothing is left behind."""
    further = f"{namespace}-further"
    assert apiserver.kubectl("create", "namespace", further).returncode == 0
    release = Release(helm, apiserver, namespace)
    rich = {**RICH, "namespaces": [namespace, further]}

    def names(kind: str, where: str = namespace) -> set[str]:
        found = apiserver.kubectl("-n", where, "get", kind, "-o", "name").stdout.split()
        return {name.partition("/")[2] for name in found}

    release("install", "headrace", str(CHART), values={})
    assert names("deployment") == {"headrace-operator", "headrace-gateway"}
    assert names("pdb") == set()
    release("upgrade", "headrace", str(CHART), values=rich)
    assert names("pdb") == {"headrace-operator"}
    assert names("role", further) == {f"headrace-operator-{namespace}", f"headrace-gateway-{namespace}"}
    release("upgrade", "headrace", str(CHART), values={"networkPolicies": False})
    assert names("networkpolicy") == set()
    assert names("role", further) == set(), "a namespace that is no longer served keeps no rights"
    release("rollback", "headrace", "2")
    assert names("networkpolicy") == {"headrace-operator", "headrace-gateway"}
    release("uninstall", "headrace")
    for kind in ("deployment", "service", "role", "rolebinding", "networkpolicy", "pdb"):
        assert names(kind) == set(), kind
        assert names(kind, further) == set(), kind


def test_two_releases_in_two_namespaces_share_no_object(helm: Path) -> None:
    first, second = (
        {(o["kind"], o["metadata"]["namespace"], o["metadata"]["name"]) for o in render(helm, name, namespaces=["x"])}
        for name in ("one", "two")
    )
    assert first & second == set()


def test_uninstalled_definitions_stay(helm: Path) -> None:
    done = subprocess.run(
        [str(helm), "template", "c", str(CRDS), "--kube-version", KUBE_VERSION],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for definition in filter(None, yaml.safe_load_all(done.stdout)):
        assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
