"""A real API server for the tests of the control plane: one per session, one namespace per test."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cluster import binaries, cache, toolchain
from cluster.apionly import ApiServer
from cluster.errors import ClusterError
from headrace.api.crd import crds
from headrace.testing.running import Bench

CURE = "run `make setup`: tests never skip what they need"
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs an API server, so that `make test-fast` can leave it out."""
    for item in items:
        if "apiserver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.apiserver)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a command sets up for its own process goes with the test that ran it in this one."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    names = ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")
    switches = {name: getattr(logging, name) for name in names}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, value in switches.items():
        setattr(logging, name, value)


def _kube() -> Path:
    """The Kubernetes binary, which takes minutes to build: a test does not build it."""
    folder = cache.find("kube", binaries.key(binaries.KUBE, toolchain.find_go().version))
    if folder is None:
        raise ClusterError("the Kubernetes binaries are not built")
    return folder / "kube"


@pytest.fixture(scope="session")
def apiserver(scratch_home: Path) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with Headrace's CRDs established; no controllers, no garbage collection."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(scratch_home))
            server = ApiServer(_kube()).__enter__()
    except ClusterError as error:
        pytest.fail(f"{error}; {CURE}", pytrace=False)
    try:
        _install_crds(server)
        yield server
    finally:
        server.__exit__(None, None, None)


def _install_crds(server: ApiServer) -> None:
    definitions = crds()
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(definitions.values())})
    applied = server.kubectl("apply", "-f", "-", stdin=manifest)
    if applied.returncode:
        pytest.fail(f"the API server refused the CRDs: {applied.stderr}", pytrace=False)
    names = [f"crd/{name}" for name in definitions]
    waited = server.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    if waited.returncode:
        pytest.fail(f"the CRDs were not established: {waited.stderr}", pytrace=False)


@pytest.fixture
def later() -> Callable[[Bench], Awaitable[None]]:
    """Waits until what is created is a second younger than what was: creationTimestamps have whole seconds."""

    async def stamp(on: Bench) -> str:
        body = {"metadata": {"name": "never-made", "namespace": on.namespace}}
        path = f"/api/v1/namespaces/{on.namespace}/configmaps"
        made = await on.client.request("POST", path, body=body, params={"dryRun": "All"})
        return str(made["metadata"]["creationTimestamp"])

    async def wait(on: Bench) -> None:
        before = await stamp(on)

        async def is_later() -> bool:
            return await stamp(on) > before

        await on.until("a later second", is_later)

    return wait


@pytest.fixture
def namespace(apiserver: ApiServer) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t{next(_numbers)}-{uuid.uuid4().hex[:6]}"
    created = apiserver.kubectl("create", "namespace", name)
    assert created.returncode == 0, created.stderr
    yield name
