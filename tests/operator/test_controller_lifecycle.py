"""Operators that come and go, against a real API server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from cluster.apionly import ApiServer
from headrace.cluster.client import connect
from headrace.cluster.resources import CHILDREN, DEPLOYMENTS, LEASES, MODELS, SERVICES
from headrace.controller import resync
from headrace.controller.main import LEASE_NAME, build
from headrace.testing.running import Bench, bench, running, settings_for

Test = Callable[[Bench, Callable[..., Any]], Awaitable[None]]


@pytest.fixture
def play(apiserver: ApiServer, namespace: str) -> Callable[[Test], None]:
    """Runs a test that starts operators itself."""
    config = str(apiserver.kubeconfig)

    def run(test: Test) -> None:
        async def main() -> None:
            async with bench(config, namespace) as on:
                await test(on, lambda **changes: settings_for(config, namespace, **changes))

        asyncio.run(main())

    return run


async def holder(on: Bench) -> str:
    lease = await on.get(LEASES, LEASE_NAME)
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def test_a_restarted_operator_converges_and_holds_replicas(play: Any) -> None:
    async def test(on: Bench, settings: Any) -> None:
        auto = {"mode": "Auto", "minReplicas": 1, "maxReplicas": 5}
        async with running(settings(identity="one")):
            await on.model(scaling=auto)
            await on.condition(MODELS, "demo", "WorkloadReady", "False")
        assert await holder(on) == "", "the Lease was given up"
        path = DEPLOYMENTS.path(on.namespace, "demo", "scale")
        manager = f"headrace.{on.namespace}"
        await on.client.patch(path, {"spec": {"replicas": 3}}, params={"fieldManager": manager})
        await on.client.delete(SERVICES, on.namespace, "demo")
        await on.patch(MODELS, "demo", {"spec": {"engine": {"maxSequences": 3}}})
        async with running(settings(identity="two")):
            await on.until("the Service again", lambda: on.get(SERVICES))

            async def rolled() -> bool:
                deployment = await on.get(DEPLOYMENTS) or {}
                command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
                return bool(command[command.index("--max-sequences") + 1] == "3")

            await on.until("the new revision", rolled)
            await on.condition(MODELS, "demo", "WorkloadReady", "False")
        deployment = await on.get(DEPLOYMENTS) or {}
        assert deployment["spec"]["replicas"] == 3

    play(test)


@contextmanager
def process(apiserver: ApiServer, namespace: str, identity: str) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace operator` in a process of its own (two of kopf's operators cannot share one)."""
    command = [
        sys.executable, "-c", "from headrace.cli.main import main; raise SystemExit(main())", "operator",
        "--install-namespace", namespace, "--engine-image", "engine:test", "--id", identity, "--host", "127.0.0.1",
        "--port", "0", "--kubeconfig", str(apiserver.kubeconfig), "--log-level", "INFO",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()
            started.wait()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGTERM, id="asked to end: the Lease is released"),
        pytest.param(signal.SIGKILL, id="killed: the Lease runs out"),
    ],
)
def test_of_two_operators_one_writes_and_the_other_takes_over(
    apiserver: ApiServer, namespace: str, end: signal.Signals
) -> None:
    async def main() -> None:
        async with bench(str(apiserver.kubeconfig), namespace) as on:
            with process(apiserver, namespace, "one") as one:
                await on.until("a leader", lambda: holder(on))
                with process(apiserver, namespace, "two"):
                    await on.model("first")
                    await on.condition(MODELS, "first", "WorkloadReady", "False")
                    assert await holder(on) == "one"
                    one.send_signal(end)

                    async def second_leads() -> bool:
                        return await holder(on) == "two"

                    await on.until("the second leads", second_leads, within_s=150)  # a Lease lasts 15 s
                    _, said = await asyncio.to_thread(one.communicate, timeout=60)
                    assert (b"leadership was released" in said) == (end == signal.SIGTERM)
                    assert one.returncode == (0 if end == signal.SIGTERM else -signal.SIGKILL)
                    await on.model("second")
                    await on.condition(MODELS, "second", "WorkloadReady", "False")

    asyncio.run(main())


def test_a_follower_is_ready_and_says_who_leads(play: Any) -> None:
    async def test(on: Bench, settings: Any) -> None:
        port = _free_port()
        async with running(settings(identity="one")):
            await on.until("a leader", lambda: holder(on))
            async with running(settings(identity="two", port=port)), httpx.AsyncClient(trust_env=False) as http:

                async def ready() -> bool:
                    try:
                        return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
                    except httpx.TransportError:
                        return False

                await on.until("the follower is ready", ready)

                async def told() -> bool:
                    health = await http.get(f"http://127.0.0.1:{port}/healthz")
                    assert health.status_code == 200
                    return health.json()["leader"] is False and health.json()["holder"] == "one"

                await on.until("the follower names the leader", told)
                metrics = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
                assert "headrace_operator_leader 0.0" in metrics

    play(test)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_list_heals_a_cache_with_ghosts_and_recreates_what_is_missing(apiserver: ApiServer, namespace: str) -> None:
    """As after a gap that no watch could resume from: the cache is filled, then the world changes behind its back."""

    async def main() -> None:
        config = str(apiserver.kubeconfig)
        settings = settings_for(config, namespace)
        async with bench(config, namespace) as on, await connect(config) as client, httpx.AsyncClient() as http:
            operator = build(settings, client, http)
            await operator.leader.attempt()
            tasks = [asyncio.create_task(operator.workers.run()) for _ in range(2)]
            try:
                for name in ("lives", "ghost"):
                    await on.model(name)
                await operator.resync.relist()
                await on.condition(MODELS, "lives", "WorkloadReady", "False")
                await on.condition(MODELS, "ghost", "WorkloadReady", "False")
                await on.until("the queue is empty", lambda: _idle(operator))
                await on.client.delete(MODELS, namespace, "ghost")
                await on.client.delete(SERVICES, namespace, "lives")
                await operator.resync.relist()
                assert operator.store.get(MODELS, (namespace, "ghost")) is None
                await on.until("the Service again", lambda: on.get(SERVICES, "lives"))
            finally:
                for task in tasks:
                    task.cancel()

    asyncio.run(main())


async def _idle(operator: Any) -> bool:
    return bool(operator.queue.idle)


def test_the_operator_waits_for_the_custom_resources(
    apiserver: ApiServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to list them it neither ends nor writes; with it, it begins."""
    user = f"system:serviceaccount:{namespace}:late"
    config = str(apiserver.kubeconfig_as(user, ["system:authenticated"]))

    async def main() -> None:
        async with bench(str(apiserver.kubeconfig), namespace) as on:
            await on.model()
            async with running(settings_for(config, namespace)):

                async def waits() -> bool:
                    return any("cannot be listed" in record.getMessage() for record in caplog.records)

                await on.until("a line that says what it waits for", waits)
                assert await on.get(DEPLOYMENTS) is None
                for kind, body in _all_rights(namespace, user).items():
                    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{kind}"
                    await on.client.request("POST", path, body=body)
                await on.condition(MODELS, "demo", "WorkloadReady", "False")
                for resource in CHILDREN:
                    assert await on.get(resource) is not None

    asyncio.run(main())


def _all_rights(namespace: str, user: str) -> dict[str, Any]:
    metadata = {"name": "late", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    return {
        "roles": {"metadata": metadata, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
        "rolebindings": {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "late"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
        },
    }


def test_a_namespace_without_rights_waits_while_the_other_is_served(
    apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync, "REFUSED_S", 0.5)
    closed = f"{namespace}-a"  # before the other in every order
    assert apiserver.kubectl("create", "namespace", closed).returncode == 0
    user = f"system:serviceaccount:{namespace}:late"
    config = str(apiserver.kubeconfig_as(user, ["system:authenticated"]))

    async def grant(on: Bench, where: str) -> None:
        for kind, body in _all_rights(where, user).items():
            await on.client.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{where}/{kind}", body=body)

    async def main() -> None:
        admin, port = str(apiserver.kubeconfig), _free_port()
        settings = settings_for(config, namespace, namespaces=(closed, namespace), port=port)
        async with bench(admin, namespace) as on, bench(admin, closed) as elsewhere:
            await grant(on, namespace)
            await elsewhere.model()
            async with running(settings), httpx.AsyncClient() as http:
                await on.model()
                await on.condition(MODELS, "demo", "WorkloadReady", "False")
                assert (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
                assert await elsewhere.get(DEPLOYMENTS) is None
                await grant(on, closed)
                await elsewhere.condition(MODELS, "demo", "WorkloadReady", "False")

    asyncio.run(main())
