"""The API-only server: real etcd, real kube-apiserver."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.apionly import ApiServer
from cluster.process import wait_until

pytestmark = pytest.mark.apiserver

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "wheels.try.example"},
    "spec": {
        "group": "try.example",
        "names": {"kind": "Wheel", "plural": "wheels"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low <= self.high", "message": "low must not exceed high"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def test_token_is_an_administrator(api: ApiServer) -> None:
    request = urllib.request.Request(f"{api.url}/api/v1/namespaces", headers={"Authorization": f"Bearer {api.token}"})
    context = ssl.create_default_context(cafile=str(api.ca_file))
    with urllib.request.urlopen(request, context=context) as answer:
        assert "default" in [item["metadata"]["name"] for item in json.load(answer)["items"]]


def test_kubectl_of_the_pinned_version_reaches_it(api: ApiServer) -> None:
    versions = json.loads(api.kubectl("version", "-o", "json").stdout)
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == "v1.34.4"


def test_rules_of_a_custom_resource_are_enforced(api: ApiServer) -> None:
    assert api.kubectl("apply", "-f", "-", stdin=json.dumps(CRD)).returncode == 0
    assert api.kubectl("wait", "crd/wheels.try.example", "--for=condition=Established").returncode == 0
    wheel = {
        "apiVersion": "try.example/v1",
        "kind": "Wheel",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"low": 2, "high": 1},
    }
    refused = api.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(wheel))
    assert refused.returncode == 1
    assert "low must not exceed high" in refused.stderr


def test_another_user_is_bound_by_rbac(api: ApiServer) -> None:
    config = api.kubeconfig_as("clerk", ["clerks"])
    refused = api.kubectl("--kubeconfig", str(config), "get", "configmaps")
    assert 'User "clerk" cannot list' in refused.stderr
    assert api.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps").returncode == 0
    assert api.kubectl("create", "rolebinding", "clerks", "--role=reader", "--group=clerks").returncode == 0
    # The authorizer reads roles from a watch, a moment later.
    assert wait_until(lambda: api.kubectl("--kubeconfig", str(config), "get", "configmaps").returncode == 0, 30)


def test_nothing_is_left_after_the_block() -> None:
    with ApiServer() as server:
        folder = server.folder
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url, timeout=2)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
