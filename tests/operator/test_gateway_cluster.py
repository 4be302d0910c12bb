"""The World follows the cluster: what is ready, what leaves, what cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.api.model import Model
from headrace.cluster.resources import ENDPOINT_SLICES, MODELS, SLOS, TENANTS
from headrace.gateway.endpoints import ClusterFeed, addresses, parse_all
from headrace.gateway.world import Address, World
from headrace.testing.fake_cluster import FakeCluster
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import CLASSES, eventually, make_model, serving

NAMESPACE = "team-a"
KEY = (NAMESPACE, "m")
SHA = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of "key"


def pod(name: str, ip: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [ip], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def piece(name: str, *pods: dict[str, Any], service: str = "m", port: int = 8000) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"metadata": meta, "endpoints": list(pods), "ports": [{"name": "http", "port": port}]}


READY = {
    "ready": ([piece("s", pod("p", "10.0.0.1", ready=True))], {"p": 8000}),
    "not ready": ([piece("s", pod("p", "10.0.0.1", ready=False))], {}),
    "readiness unknown": ([piece("s", pod("p", "10.0.0.1"))], {}),
    "terminating": ([piece("s", pod("p", "10.0.0.1", ready=True, serving=True, terminating=True))], {}),
    "another port": ([piece("s", pod("p", "10.0.0.1", ready=True), port=9000)], {"p": 9000}),
    "two slices": (
        [piece("s", pod("p", "10.0.0.1", ready=True)), piece("t", pod("q", "10.0.0.2", ready=True))],
        {"p": 8000, "q": 8000},
    ),
    "no endpoints": ([{**piece("s"), "endpoints": None, "ports": None}], {}),
}


@pytest.mark.parametrize(("slices", "pods"), READY.values(), ids=READY.keys())
def test_only_ready_pods_are_addresses(slices: list[dict[str, Any]], pods: dict[str, int]) -> None:
    assert {address.pod: address.port for address in addresses(slices).get(KEY, ())} == pods


def test_what_cannot_be_read_or_is_being_deleted_is_left_out() -> None:
    meta = {"name": "m", "namespace": NAMESPACE}
    good = {"metadata": meta, "spec": {"source": {"uri": "builtin://demo"}, "laterField": 1}}
    found = parse_all(
        Model,
        {
            KEY: good,
            (NAMESPACE, "bad"): {"metadata": {**meta, "name": "bad"}, "spec": {}},
            (NAMESPACE, "gone"): {**good, "metadata": {**meta, "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        },
    )
    assert list(found) == [KEY]


async def fill(cluster: FakeCluster) -> None:
    """A Model, its objective and a Tenant."""
    spec = {"source": {"uri": "builtin://demo"}, "serviceLevelRef": {"name": "chat"}}
    tenant = {"apiKeys": [{"name": "k", "sha256": SHA}], "models": [{"name": "m"}], "classes": ["interactive"]}
    for resource, name, body in (
        (MODELS, "m", spec),
        (SLOS, "chat", {"classes": list(CLASSES)}),
        (TENANTS, "t", tenant),
    ):
        await cluster.create(resource, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": body})


def test_the_world_is_filled_and_kept_up_to_date() -> None:
    async def main() -> None:
        cluster, world = FakeCluster(), World()
        await fill(cluster)
        feed = asyncio.create_task(ClusterFeed(world, cluster, [NAMESPACE]).run())

        async def synced() -> bool:
            return world.synced

        await eventually(synced)
        assert KEY in world.models and world.keys.find(b"key", 0) is world.tenants[(NAMESPACE, "t")]
        assert [c.name for c in world.classes_of(world.models[KEY])] == ["interactive", "batch"]

        async def ready(*wanted: Address) -> None:
            async def there() -> bool:
                return world.endpoints.get(KEY, ()) == wanted

            await eventually(there)

        await cluster.create(ENDPOINT_SLICES, piece("s", pod("p", "10.0.0.1", ready=True)))
        await ready(Address("p", "10.0.0.1", 8000))
        leaving = piece("s", pod("p", "10.0.0.1", ready=False, terminating=True), pod("q", "10.0.0.2", ready=True))
        await cluster.replace(ENDPOINT_SLICES, leaving)
        await ready(Address("q", "10.0.0.2", 8000))
        await cluster.delete(TENANTS, NAMESPACE, "t")

        async def unknown() -> bool:
            return world.keys.find(b"key", 0) is None

        await eventually(unknown)
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)

    asyncio.run(main())


def test_a_restarted_gateway_holds_requests_for_a_model_at_zero() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        await fill(cluster)
        async with FakeEngine(tokens_per_s=1000.0) as engine:
            world = World()
            async with serving(world) as gateway:
                feed = asyncio.create_task(ClusterFeed(world, cluster, [NAMESPACE]).run())

                async def ready() -> bool:
                    return (await gateway.http.get(gateway.state_url + "/readyz")).status_code == 200

                await eventually(ready)
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                asking = asyncio.create_task(
                    gateway.http.post(
                        gateway.url + "/v1/chat/completions", json=body, headers={"authorization": "Bearer key"}
                    )
                )

                async def queued() -> bool:
                    return (await gateway.service_class()).queued == 1

                await eventually(queued)
                there = piece("s", pod("p", "127.0.0.1", ready=True), port=engine.port)
                await cluster.create(ENDPOINT_SLICES, there)
                assert (await asyncio.wait_for(asking, 5)).status_code == 200
                feed.cancel()
                await asyncio.gather(feed, return_exceptions=True)

    asyncio.run(main())


def test_a_status_that_cannot_be_read_costs_only_the_status() -> None:
    raw = make_model().model_dump(by_alias=True) | {"status": {"conditions": "of another version"}}
    parsed = parse_all(Model, {("ns", "m"): raw})
    assert parsed["ns", "m"].status.observed_generation == -1
