"""The whole operator against a real API server: children, status, pruning, conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.apply import Applier
from headrace.cluster.client import Object
from headrace.cluster.resources import (
    BUDGETS,
    CHILDREN,
    DEPLOYMENTS,
    EVENTS,
    MODELS,
    NETWORK_POLICIES,
    PROFILES,
    SERVICES,
    SLOS,
    TENANTS,
)
from headrace.testing.running import Bench, bench, running, settings_for

Test = Callable[[Bench], Awaitable[None]]


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


READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}]}


def versions(objects: list[Object | None]) -> list[str]:
    return [obj["metadata"]["resourceVersion"] for obj in objects if obj is not None]


async def family(on: Bench) -> list[Object | None]:
    return [await on.get(resource) for resource in (*CHILDREN, MODELS)]


async def revision(on: Bench) -> str:
    async def check() -> str | None:
        deployment = await on.get(DEPLOYMENTS)
        labels = deployment["spec"]["template"]["metadata"]["labels"] if deployment else {}
        return labels.get("headrace.dev/revision")

    found: str = await on.until("a Deployment with a revision", check)
    return found


def test_a_model_gets_its_children_and_a_status(play: Any) -> None:
    async def test(on: Bench) -> None:
        model = await on.model()
        await on.condition(MODELS, "demo", "WorkloadReady", "False", "Starting")
        for resource in (DEPLOYMENTS, SERVICES, BUDGETS, NETWORK_POLICIES):
            child = await on.get(resource)
            assert child is not None, resource.kind
            owner = child["metadata"]["ownerReferences"]
            assert [(o["kind"], o["uid"], o["controller"]) for o in owner] == [
                ("Model", model["metadata"]["uid"], True)
            ]
        seen = await on.get(MODELS) or {}
        assert seen["status"]["observedGeneration"] == 1
        assert seen["status"]["selector"] == "headrace.dev/model=demo,headrace.dev/role=serve"
        assert seen["status"]["url"] == f"http://headrace-gateway.{on.namespace}.svc/v1"
        assert "finalizers" not in seen["metadata"]
        assert "annotations" not in seen["metadata"]

    play(test)


def test_a_second_apply_changes_no_resource_version(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        await on.condition(MODELS, "demo", "WorkloadReady", "False")
        await on.pod("demo-1", await revision(on), status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        before = versions(await family(on))
        for resource in CHILDREN:  # an event for each child makes the operator apply all of them again
            await on.patch(resource, "demo", {"metadata": {"annotations": {"example.com/poke": "1"}}})
        poked = versions(await family(on))
        assert poked[-1] == before[-1]
        other = await on.create(
            SLOS, "other", {"spec": {"classes": [{"name": "a", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s"}]}}
        )
        await on.condition(SLOS, "other", "Ready", "True")  # what was queued before it is done
        assert other is not None
        assert versions(await family(on)) == poked

    play(test)


def test_a_deleted_child_comes_back_and_a_stray_one_goes(play: Any) -> None:
    async def test(on: Bench) -> None:
        model = await on.model()
        await on.condition(MODELS, "demo", "WorkloadReady", "False")
        await on.client.delete(SERVICES, on.namespace, "demo")
        await on.until("the Service again", lambda: on.get(SERVICES))
        child = await on.get(SERVICES) or {}
        stray = {
            "metadata": {k: child["metadata"][k] for k in ("labels", "ownerReferences")},
            "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
        }
        unowned = {**stray, "metadata": {"labels": child["metadata"]["labels"]}}
        await on.create(SERVICES, "unowned", unowned)
        await on.create(SERVICES, "stray", stray)

        async def gone() -> bool:
            return await on.get(SERVICES, "stray") is None

        await on.until("the stray Service deleted", gone)
        assert await on.get(SERVICES, "unowned") is not None
        assert model["metadata"]["uid"]

    play(test)


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        pytest.param(
            {
                "initContainerStatuses": [
                    {
                        "name": "fetch", "image": "i", "imageID": "", "ready": False, "restartCount": 3,
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {
                            "terminated": {
                                "exitCode": 1,
                                "message": '{"reason":"ModelIncomplete","file":"model.safetensors","message":"gone"}',
                            }
                        },
                    }
                ]
            },
            "ModelIncomplete",
            "model.safetensors: gone",
            id="the init container names the missing file",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    {
                        "name": "engine", "image": "engine:nope", "imageID": "", "ready": False, "restartCount": 0,
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
                    }
                ]
            },
            "ImagePullFailed",
            "engine:nope",
            id="the image cannot be pulled",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    {
                        "name": "engine", "image": "i", "imageID": "", "ready": False, "restartCount": 2,
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ]
            },
            "OutOfMemory",
            "restarts: 2",
            id="the kernel killed the engine",
        ),
        pytest.param(
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "Unschedulable",
            "0/1 nodes",
            id="no node has room",
        ),
    ],
)  # fmt: skip
def test_a_pods_trouble_is_a_condition(play: Any, status: Object, reason: str, says: str) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        found = await revision(on)
        await on.pod("demo-1", found, status=READY)
        await on.condition(MODELS, "demo", "Ready", "True", "Ready")
        await on.patch(_pods(), "demo-1", {"status": {"conditions": None, **status}}, "status")
        for kind in ("WorkloadReady", "Ready"):
            condition = await on.condition(MODELS, "demo", kind, "False", reason)
            assert says in condition["message"]
            assert "demo-1" in condition["message"]

        async def event() -> list[Object]:
            items, _ = await on.client.list(EVENTS, on.namespace)
            return [e for e in items if e["reason"] == reason and e["regarding"]["name"] == "demo"]

        (seen, *_) = await on.until("an Event", event)
        assert seen["type"] == "Warning"

    play(test)


def _pods() -> Any:
    from headrace.cluster.resources import PODS

    return PODS


def test_a_rollout_is_reconciling_until_a_pod_of_the_new_revision_is_ready(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        first = await revision(on)
        await on.pod("old", first, status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        await on.patch(MODELS, "demo", {"spec": {"engine": {"maxSequences": 7}}})
        await on.condition(MODELS, "demo", "Ready", "False", "RollingOut")
        await on.condition(MODELS, "demo", "Reconciling", "True")
        second = await revision(on)
        assert second != first
        await on.pod("new", second, status=READY)
        await on.condition(MODELS, "demo", "Ready", "True")
        await on.client.delete(_pods(), on.namespace, "old")

        async def settled() -> bool:
            model = await on.get(MODELS) or {}
            return all(c["type"] != "Reconciling" for c in model["status"]["conditions"])

        await on.until("no longer Reconciling", settled)

    play(test)


def test_a_spec_that_only_an_older_schema_allowed_is_stalled_with_its_field(apiserver: ApiServer, play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.create(PROFILES, "wide", {"spec": {"tensor": 2, "topology": _topology()}})
        await on.model(parallelismRef={"name": "wide"})
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "ParallelismUnsupported")
        assert "2 ranks" in stalled["message"]
        await on.condition(MODELS, "demo", "Ready", "False", "ParallelismUnsupported")
        model = await on.get(MODELS) or {}
        assert model["status"]["communication"]["slowestLink"] == "intraNode"
        assert model["status"]["communication"]["prefill"]["bytes"]
        assert await on.get(DEPLOYMENTS) is None

        async def used() -> bool:
            profile = await on.get(PROFILES, "wide") or {}
            status = profile.get("status") or {}
            return status.get("usedBy") == ["demo"] and status.get("gpusPerReplica") == 2

        await on.until("the profile's users", used)

    play(test)


def _topology() -> Object:
    return {
        "gpusPerNode": 8,
        "intraNode": {"bandwidth": "450G", "latency": "2us"},
        "interNode": {"bandwidth": "50G", "latency": "10us"},
    }


def test_a_reference_may_come_later(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model(serviceLevelRef={"name": "chat"})
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "ReferenceNotFound")
        assert "spec.serviceLevelRef.name" in stalled["message"]
        slo = {"classes": [{"name": "fast", "ttft": "1s", "tpot": "100ms", "maxQueueAge": "1s", "e2e": "9s"}]}
        await on.create(SLOS, "chat", {"spec": slo})
        await on.condition(MODELS, "demo", "Accepted", "True")
        deployment = await on.until("a Deployment", lambda: on.get(DEPLOYMENTS))
        command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[command.index("--drain-seconds") + 1] == "9"

    play(test)


def test_another_manager_of_replicas_is_seen_and_not_fought(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model(scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": 4})
        await on.until("a Deployment", lambda: on.get(DEPLOYMENTS))
        path = DEPLOYMENTS.path(on.namespace, "demo", "scale")
        await on.client.patch(path, {"spec": {"replicas": 3}}, params={"fieldManager": "scaler"})
        condition = await on.condition(MODELS, "demo", "ScalingActive", "False", "Conflict")
        assert "'scaler'" in condition["message"]
        deployment = await on.get(DEPLOYMENTS) or {}
        assert deployment["spec"]["replicas"] == 3

    play(test)


def test_a_foreign_deployment_is_left_alone(play: Any) -> None:
    async def test(on: Bench) -> None:
        labels = {"app": "mine"}
        spec = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        }
        before = await on.create(DEPLOYMENTS, "demo", {"spec": spec})
        await on.model()
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "NameTaken")
        assert "Deployment demo" in stalled["message"]
        after = await on.get(DEPLOYMENTS) or {}
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    play(test)


def test_nothing_is_created_for_a_model_that_is_being_deleted(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.create(
            MODELS,
            "demo",
            {"metadata": {"finalizers": ["example.com/hold"]}, "spec": {"source": {"uri": "builtin://demo"}}},
        )
        await on.until("a Service", lambda: on.get(SERVICES))
        await on.client.delete(MODELS, on.namespace, "demo")
        await on.client.delete(SERVICES, on.namespace, "demo")
        await on.model("next")
        await on.condition(MODELS, "next", "WorkloadReady", "False")
        assert await on.get(SERVICES) is None
        await on.patch(MODELS, "demo", {"metadata": {"finalizers": None}})

    play(test)


def test_memory_that_does_not_fit_refuses_before_any_pod(play: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model(pod={"resources": {"limits": {"memory": "64Mi"}}})
        stalled = await on.condition(MODELS, "demo", "Stalled", "True", "WeightsTooLarge")
        assert "64Mi" in stalled["message"]
        await on.condition(MODELS, "demo", "MemoryFits", "False", "WeightsTooLarge")
        assert await on.get(DEPLOYMENTS) is None
        await on.patch(MODELS, "demo", {"spec": {"pod": {"resources": {"limits": {"memory": "2Gi"}}}}})
        await on.condition(MODELS, "demo", "MemoryFits", "True", "Fits")
        await on.until("a Deployment", lambda: on.get(DEPLOYMENTS))

    play(test)


def test_of_two_tenants_with_one_key_the_older_keeps_it(play: Any, later: Any) -> None:
    async def test(on: Bench) -> None:
        await on.model()
        key = {"name": "ci", "sha256": "a" * 64}
        await on.create(TENANTS, "older", {"spec": {"apiKeys": [key], "models": [{"name": "demo"}]}})
        await on.condition(TENANTS, "older", "Accepted", "True")
        await later(on)
        await on.create(TENANTS, "younger", {"spec": {"apiKeys": [key]}})
        taken = await on.condition(TENANTS, "younger", "Accepted", "False", "KeyInUse")
        assert "Tenant older" in taken["message"]
        await on.condition(TENANTS, "older", "Accepted", "True")
        await on.client.delete(TENANTS, on.namespace, "older")
        await on.condition(TENANTS, "younger", "Accepted", "True")
        await on.patch(TENANTS, "younger", {"spec": {"models": [{"name": "absent"}]}})
        missing = await on.condition(TENANTS, "younger", "Accepted", "False", "ModelNotFound")
        assert "absent" in missing["message"]
        enforced = await on.condition(TENANTS, "younger", "Enforced", "Unknown", "NoGateway")
        assert enforced["message"]

    play(test)


def test_the_operators_status_applies_do_not_force(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        async with bench(str(apiserver.kubeconfig), namespace) as on:
            await on.model()
            other = Applier(on.client, "somebody")
            metadata = {"name": "demo", "namespace": namespace}
            status = {"apiVersion": MODELS.api_version, "kind": "Model", "metadata": metadata}
            await other.apply_status(MODELS, {**status, "status": {"url": "http://elsewhere"}})
            async with running(settings_for(str(apiserver.kubeconfig), namespace)):
                await on.until("a Deployment", lambda: on.get(DEPLOYMENTS))
            model = await on.get(MODELS) or {}
            assert model["status"]["url"] == "http://elsewhere"

    asyncio.run(main())
