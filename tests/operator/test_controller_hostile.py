"""The whole operator against a real API server, in a world where others write, take back and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.client import Object
from headrace.cluster.resources import (
    CHILDREN,
    CUSTOM,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    MODELS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    SERVICES,
    SLOS,
    TENANTS,
)
from headrace.controller.main import LEASE_NAME
from headrace.planning.installation import Installation
from headrace.testing.running import Bench, bench, running, settings_for

Test = Callable[[Bench], Awaitable[None]]
READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}]}
KEY = {"name": "ci", "sha256": "c" * 64}


@pytest.fixture
def play(apiserver: ApiServer, namespace: str) -> Callable[[Test], None]:
    """Runs a test beside a running operator."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[Bench]:
        config = str(apiserver.kubeconfig)
        async with bench(config, namespace) as on, running(settings_for(config, namespace)):
            yield on

    def run(test: Test) -> None:
        async def main() -> None:
            async with stage() as on:
                await test(on)

        asyncio.run(main())

    return run


def objective(*names: str, e2e: str = "30s") -> Object:
    classes = [
        {"name": name, "priority": 10 * n, "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s", "e2e": e2e}
        for n, name in enumerate(names)
    ]
    return {"spec": {"classes": classes}}


async def deployment(on: Bench, name: str = "demo") -> Object:
    found: Object = await on.until("a Deployment", lambda: on.get(DEPLOYMENTS, name))
    return found


def revision_in(obj: Object) -> str:
    return str(obj["spec"]["template"]["metadata"]["labels"]["headrace.dev/revision"])


async def absent(on: Bench, resource: Any, name: str = "demo") -> None:
    async def gone() -> bool:
        return await on.get(resource, name) is None

    await on.until(f"{resource.kind} {name} gone", gone)


# Other people's objects


def test_a_service_of_somebody_else_is_left_alone_and_its_end_is_noticed(play: Any) -> None:
    async def test(on: Bench) -> None:
        spec = {"selector": {"app": "mine"}, "ports": [{"port": 80}]}
        before = await on.create(SERVICES, "demo", {"spec": spec})
        await on.model()
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "NameTaken")
        assert "Service demo" in stalled["message"]
        assert await on.get(DEPLOYMENTS) is None
        after = await on.get(SERVICES) or {}
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        await on.client.delete(SERVICES, on.namespace, "demo")
        await on.condition(MODELS, "demo", "Accepted", "True")
        await deployment(on)

    play(test)


def test_a_field_that_another_manager_took_is_named_not_forced(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        await deployment(on)
        container = {"name": "engine", "image": "patched:1"}
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        await on.client.patch(
            DEPLOYMENTS.path(on.namespace, "demo"),
            patch,
            content_type="application/strategic-merge-patch+json",
            params={"fieldManager": "kubectl-set"},
        )
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "Conflict")
        assert "kubectl-set" in stalled["message"]
        assert ".image" in stalled["message"]
        made = await deployment(on)
        assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "patched:1"

    play(test)


def test_the_way_back_after_kubectl_scale(apiserver: ApiServer, play: Any) -> None:
    """As operator/README.md says: the entry of the other manager is taken out of managedFields."""

    async def test(on: Bench) -> None:
        await on.model(scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": 4})
        await deployment(on)
        scaled = await asyncio.to_thread(
            apiserver.kubectl, "scale", "-n", on.namespace, "deployment", "demo", "--replicas=3"
        )
        assert scaled.returncode == 0, scaled.stderr
        await on.condition(MODELS, "demo", "ScalingActive", "False", "Conflict")
        model = await on.get(MODELS) or {}
        assert model["status"]["scaling"]["desired"] == 3, "what is wanted is what the other wants"
        managers = [entry["manager"] for entry in (await deployment(on))["metadata"]["managedFields"]]
        at = managers.index("kubectl")
        patch = f'[{{"op": "remove", "path": "/metadata/managedFields/{at}"}}]'
        freed = await asyncio.to_thread(
            apiserver.kubectl, "patch", "-n", on.namespace, "deployment", "demo", "--type=json", "-p", patch
        )
        assert freed.returncode == 0, freed.stderr
        await on.condition(MODELS, "demo", "ScalingActive", "True", "Active")
        assert (await deployment(on))["spec"]["replicas"] == 3, "the count that runs holds until it is decided anew"

    play(test)


def test_a_second_installation_over_the_same_namespace_neither_writes_nor_fights(
    apiserver: ApiServer, namespace: str
) -> None:
    other = f"{namespace}-b"
    assert apiserver.kubectl("create", "namespace", other).returncode == 0

    async def main() -> None:
        config = str(apiserver.kubeconfig)
        second = settings_for(
            config,
            namespace,
            installation=Installation(namespace=other, engine_image="engine:other"),
            namespaces=(namespace,),
        )
        async with bench(config, namespace) as on, running(settings_for(config, namespace)):
            await on.model()
            await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
            async with running(second):

                async def tries() -> int:
                    """How often the second one has told that it may not write."""
                    items, _ = await on.client.list(EVENTS, namespace)
                    told = [e for e in items if e["reason"] == "Conflict" and f"headrace.{namespace}" in e["note"]]
                    return sum(int((e.get("series") or {}).get("count", 1)) for e in told)

                await on.until("an Event that names the other installation", tries)
                before = [await on.get(resource) or {} for resource in CHILDREN]
                seen = await tries()
                await on.patch(MODELS, "demo", {"spec": {"scaling": {"downAfter": "6m"}}})  # a look for both
                await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")

                async def again() -> bool:
                    return await tries() > seen

                await on.until("the second one has tried again", again)
                after = [await on.get(resource) or {} for resource in CHILDREN]
                versions = [[o["metadata"]["resourceVersion"] for o in objects] for objects in (before, after)]
                assert versions[0] == versions[1]
                spec = after[0]["spec"]["template"]["spec"]
                assert spec["containers"][0]["image"] == "engine:test"
                leases, _ = await on.client.list(LEASES, other)
                assert [lease["metadata"]["name"] for lease in leases] == [LEASE_NAME]

    asyncio.run(main())


# What comes, changes and goes


def test_an_objective_that_is_deleted_and_made_again(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.create(SLOS, "chat", objective("batch", "interactive"))

        async def listed() -> bool:
            return bool(((await on.get(SLOS, "chat") or {})["status"]).get("classes") == ["interactive", "batch"])

        await on.until("its classes, the highest priority first", listed)
        await on.model(serviceLevelRef={"name": "chat"}, scaling={"mode": "Auto", "maxReplicas": 2})
        await on.condition(MODELS, "demo", "Accepted", "True")
        before = await deployment(on)
        await on.pod("demo-1", revision_in(before), status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        await on.client.delete(SLOS, on.namespace, "chat")
        await on.condition(MODELS, "demo", "Stalled", "True", "ReferenceNotFound")
        await on.condition(MODELS, "demo", "WorkloadReady", "True", "PodsReady")
        await on.condition(MODELS, "demo", "ScalingActive", "False", "NotApplied")
        await on.create(SLOS, "chat", objective("batch", "interactive", e2e="10s"))
        await on.condition(MODELS, "demo", "Ready", "True")
        after = await deployment(on)
        assert revision_in(after) == revision_in(before), "a shorter e2e rolls no pod"
        assert after["metadata"]["generation"] == before["metadata"]["generation"]

    play(test)


def test_two_ranks_and_back_touch_nothing_that_runs(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.create(PROFILES, "wide", {"spec": {"tensor": 1}})
        await on.model(parallelismRef={"name": "wide"})
        before = await deployment(on)
        await on.pod("demo-1", revision_in(before), status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        await on.patch(PROFILES, "wide", {"spec": {"tensor": 2}})
        await on.condition(MODELS, "demo", "Stalled", "True", "ParallelismUnsupported")
        await on.condition(MODELS, "demo", "WorkloadReady", "True", "PodsReady")
        await on.patch(PROFILES, "wide", {"spec": {"tensor": 1}})
        await on.condition(MODELS, "demo", "Ready", "True")
        after = await deployment(on)
        assert after["metadata"]["generation"] == before["metadata"]["generation"]

    play(test)


def test_a_model_that_is_edited_while_it_is_deleted(play: Any) -> None:
    async def test(on: Bench) -> None:
        held = {"metadata": {"finalizers": ["example.com/hold"]}, "spec": {"source": {"uri": "builtin://demo"}}}
        await on.create(MODELS, "demo", held)
        before = await deployment(on)
        await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
        await on.client.delete(MODELS, on.namespace, "demo")
        await on.patch(MODELS, "demo", {"spec": {"engine": {"maxSequences": 5}}})
        await on.client.delete(NETWORK_POLICIES, on.namespace, "demo")
        await on.model("next")
        await on.condition(MODELS, "next", "WorkloadReady", "False")
        assert revision_in(await deployment(on)) == revision_in(before)
        assert await on.get(NETWORK_POLICIES) is None
        await on.patch(MODELS, "demo", {"metadata": {"finalizers": None}})
        await absent(on, MODELS)
        await on.model()  # the next of that name: the former one's children are not its own
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "NameTaken")
        assert "does not belong to this Model" in stalled["message"]
        for resource in CHILDREN:  # as the garbage collector does
            if await on.get(resource) is not None:
                await on.client.delete(resource, on.namespace, "demo")
        await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
        assert revision_in(await deployment(on)) == revision_in(before)

    play(test)


def test_a_key_moves_from_one_tenant_to_another(play: Any, later: Any) -> None:
    async def test(on: Bench) -> None:
        await on.create(TENANTS, "first", {"spec": {"apiKeys": [KEY]}})
        await on.condition(TENANTS, "first", "Accepted", "True")
        await later(on)
        await on.create(TENANTS, "second", {"spec": {"apiKeys": [KEY]}})
        await on.condition(TENANTS, "second", "Accepted", "False", "KeyInUse")
        await on.patch(TENANTS, "first", {"spec": {"apiKeys": []}})
        await on.condition(TENANTS, "second", "Accepted", "True")
        await on.patch(TENANTS, "first", {"spec": {"apiKeys": [KEY]}})
        await on.condition(TENANTS, "second", "Accepted", "False", "KeyInUse")
        await on.client.delete(TENANTS, on.namespace, "first")
        await on.condition(TENANTS, "second", "Accepted", "True")

    play(test)


def test_a_pod_that_may_not_be_made_is_told(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        await deployment(on)
        refused = {
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "pods is forbidden: exceeded quota: gpus",
        }  # fmt: skip
        await on.patch(DEPLOYMENTS, "demo", {"status": {"conditions": [refused]}}, "status")
        said = await on.condition(MODELS, "demo", "Ready", "False", "PodsRefused")
        assert "exceeded quota" in said["message"]

    play(test)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(
            {"pod": {"resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"memory": "2Gi"}}}},
            "Limit must be set for non overcommitable resources",
            id="a GPU in requests alone",
        ),
        pytest.param(
            {"pod": {"tolerations": [{"operator": "Exists", "value": "x"}]}}, "tolerations", id="a toleration's value"
        ),
    ],
)
def test_what_only_the_deployment_refuses_is_stalled_with_its_field(play: Any, spec: Object, says: str) -> None:
    async def test(on: Bench) -> None:
        await on.model(**spec)
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "ApplyRefused")
        assert says in stalled["message"]
        await on.condition(MODELS, "demo", "Ready", "False", "ApplyRefused")
        await on.patch(MODELS, "demo", {"spec": dict.fromkeys(spec)})
        await on.condition(MODELS, "demo", "Accepted", "True")

    play(test)


def test_a_huge_spec_is_served(play: Any) -> None:
    async def test(on: Bench) -> None:
        env = [{"name": f"V{n}_{'x' * 100}", "value": "y" * 4096} for n in range(64)]
        labels = {f"example.com/label-{n}": "z" * 63 for n in range(32)}
        tolerations = [{"key": f"example.com/{n}", "operator": "Exists"} for n in range(32)]
        await on.model(runtime={"env": env}, pod={"labels": labels, "tolerations": tolerations})
        await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
        made = await deployment(on)
        assert len(made["spec"]["template"]["spec"]["containers"][0]["env"]) >= 65

    play(test)


# Versions and endings


def test_fields_and_statuses_of_other_versions_are_read(play: Any) -> None:
    """A status as an older operator left it, and one that cannot be read at all."""

    async def test(on: Bench) -> None:
        await on.model()
        await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
        made = await deployment(on)
        body = {"status": {"source": {"revision": "1", "uri": None}, "scaling": None, "podRevision": revision_in(made)}}
        await on.client.patch(MODELS.path(on.namespace, "demo", "status"), body, params={"fieldManager": "old"})
        await on.pod("demo-1", revision_in(made), status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")

    play(test)


def test_after_the_operator_has_gone_everything_can_be_deleted_at_once(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        config = str(apiserver.kubeconfig)
        async with bench(config, namespace) as on:
            async with running(settings_for(config, namespace)):
                await on.create(SLOS, "demo", objective("a"))
                await on.create(PROFILES, "demo", {"spec": {"tensor": 1}})
                await on.model(serviceLevelRef={"name": "demo"}, parallelismRef={"name": "demo"})
                await on.create(TENANTS, "demo", {"spec": {"apiKeys": [KEY], "models": [{"name": "demo"}]}})
                await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
                await on.condition(TENANTS, "demo", "Accepted", "False")
            for resource in CUSTOM:
                found = await on.get(resource) or {}
                assert "finalizers" not in found["metadata"], resource.kind
                assert "annotations" not in found["metadata"], resource.kind
                ours = [e for e in found["metadata"]["managedFields"] if e["manager"] == f"headrace.{namespace}"]
                assert [e.get("subresource") for e in ours] == ["status"], "nothing of a user's spec is ever written"
                await on.client.delete(resource, namespace, "demo")
                assert await on.get(resource) is None, resource.kind
            for resource in CHILDREN:
                child = await on.get(resource) or {}
                (owner,) = child["metadata"]["ownerReferences"]
                assert owner["blockOwnerDeletion"] is False
                assert "finalizers" not in child["metadata"]

    asyncio.run(main())


def test_pods_of_a_drained_node_are_not_the_models_end(play: Any, later: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        revision = revision_in(await deployment(on))
        await on.pod("demo-1", revision, status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        gone = {"phase": "Failed", "reason": "Evicted", "message": "node is drained", "conditions": None}
        await on.patch(PODS, "demo-1", {"status": gone}, "status")
        said = await on.condition(MODELS, "demo", "Ready", "False", "PodFailed")
        assert "node is drained" in said["message"]
        await later(on)
        await on.pod("demo-2", revision)
        await on.condition(MODELS, "demo", "Ready", "False", "Starting")
        await on.patch(PODS, "demo-2", {"status": READY}, "status")
        await on.condition(MODELS, "demo", "Ready", "True")

    play(test)
