"""Quotas and nodes that are too small for all: read at scale time, shared out, told in the decision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.errors import ApiError, ClusterError, Unreachable
from headrace.cluster.resources import QUOTAS
from headrace.controller.purse import FORGET_S, LAG_S, Purse, Wish
from headrace.planning.pods import report
from headrace.scaling.record import replay
from headrace.testing.fake_cluster import FakeCluster
from headrace.testing.running import bench
from headrace.testing.stage import KEY, Stage, play

GPU = "nvidia.com/gpu"
T0 = 1_800_000_000.0
NO_GPU = f"0/3 nodes are available: 3 Insufficient {GPU}."


def wish(
    name: str, wanted: int, current: int = 1, *, least: int = 0, weight: int = 1, waiting: int = 0, **pod: Any
) -> Wish:
    limits = {"limits": {GPU: str(pod.get("gpus", 1))}}
    template = {"spec": {"containers": [{"resources": limits}], "nodeSelector": pod.get("selector") or {}}}
    stuck = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}]
    pods = [{"metadata": {"name": f"{name}-{i}"}, "status": {"conditions": stuck}} for i in range(waiting)]
    return Wish(
        key=(pod.get("namespace", "team"), name),
        least=least,
        current=current,
        wanted=wanted,
        weight=weight,
        deployment={"spec": {"replicas": current, "template": template}},
        pods=report(pods, ""),
        alive=current,
    )


async def quota(fake: FakeCluster, hard: int, used: int, name: str = "gpus", namespace: str = "team") -> None:
    key = f"requests.{GPU}"
    status = {"hard": {key: str(hard)}, "used": {key: str(used)}}
    if ("resourcequotas", (namespace, name)) in fake.objects:
        await fake.delete(QUOTAS, namespace, name)
    await fake.create(QUOTAS, {"metadata": {"name": name, "namespace": namespace}, "status": status})


SHARED = {
    "no quota": (None, [wish("a", 9, 1)], {}),
    "room for all": ((9, 2), [wish("a", 2), wish("b", 3)], {}),
    "the last one to who lacks more": ((4, 3), [wish("a", 3, 2), wish("b", 3, 1)], {"a": 2, "b": 2}),
    "what others use is theirs": ((4, 3), [wish("a", 4, 1)], {"a": 2}),
    "a quota that was lowered ends nothing": ((2, 4), [wish("a", 4, 4)], {}),
    "and lets nothing grow": ((2, 4), [wish("a", 5, 3), wish("b", 1, 1)], {"a": 3}),
    "but another's least is owed": ((2, 4), [wish("a", 1, 0, least=1), wish("b", 4, 4)], {"b": 3}),
    "weight": ((4, 3), [wish("a", 3, 2, weight=9), wish("b", 3, 1)], {"b": 1}),
    "a least of its own": ((4, 4), [wish("a", 2, 0, least=2), wish("b", 4, 4)], {"b": 2}),
    "another namespace's Models": ((1, 1), [wish("a", 2, 1), wish("b", 5, 1, namespace="else")], {"a": 1}),
    "no node for one: nobody grows": (None, [wish("a", 2, 2, waiting=1), wish("b", 2, 1)], {"b": 1}),
    "no node, and the waiting one is the needier": (None, [wish("a", 1, 1, waiting=1), wish("b", 3, 2)], {"b": 2}),
    "other nodes have room": (
        None, [wish("a", 2, 2, waiting=1), wish("b", 2, 1, selector={"pool": "large"})], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "wishes", "expected"), SHARED.values(), ids=SHARED)
def test_what_is_allowed(given: tuple[int, int] | None, wishes: list[Wish], expected: dict[str, int]) -> None:
    async def main() -> None:
        fake = FakeCluster()
        if given is not None:
            await quota(fake, *given)
        purse = Purse(fake)
        await purse.refresh({w.key[0] for w in wishes}, T0)
        found = purse.allow(wishes, T0)
        assert {name: allowed.most for (_, name), allowed in found.items()} == expected
        for (namespace, name), allowed in found.items():
            assert GPU in allowed.detail
            assert f"{namespace}/{name} {allowed.most} of" in allowed.detail

    asyncio.run(main())


def test_a_pod_that_went_and_still_counts_takes_nothing_from_anybody() -> None:
    async def main() -> None:
        fake = FakeCluster()
        purse = Purse(fake)
        await quota(fake, 4, 4)
        await purse.refresh(["team"], T0)
        assert purse.allow([wish("a", 2, 2), wish("b", 2, 2)], T0) == {}
        assert purse.allow([wish("a", 2, 1), wish("b", 2, 2)], T0 + 5) == {}, "`used` is behind by one pod"
        after = purse.allow([wish("a", 2, 1), wish("b", 2, 2)], T0 + 6 + LAG_S)
        assert {key[1]: allowed.most for key, allowed in after.items()} == {"a": 1}, "it is another's by now"

    asyncio.run(main())


FAULTS = {
    "no right": ApiError(403, {"message": "no"}),
    "away": Unreachable("gone"),
    "broken": ApiError(500, {"message": "oops"}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_quotas_that_cannot_be_read_bind_as_they_were_for_a_while(fault: ClusterError) -> None:
    async def main() -> None:
        fake = FakeCluster()
        purse = Purse(fake)
        await quota(fake, 1, 1)
        await purse.refresh(["team"], T0)
        for seconds, expected in ((10, 1), (FORGET_S, 1), (FORGET_S + 10, 0)):
            fake.fail = [fault]
            await purse.refresh(["team"], T0 + seconds)
            assert len(purse.allow([wish("a", 2)], T0 + seconds)) == expected
        await purse.refresh(["team"], T0 + FORGET_S + 20)
        assert len(purse.allow([wish("a", 2)], T0 + FORGET_S + 20)) == 1

    asyncio.run(main())


def test_quotas_are_not_read_each_second() -> None:
    async def main() -> None:
        fake = FakeCluster()
        purse = Purse(fake)
        for second in range(60):
            await purse.refresh(["team"], T0 + second)
        assert len(fake.requests) == 12

    asyncio.run(main())


def test_a_clock_that_went_back_reads_them_again() -> None:
    async def main() -> None:
        fake = FakeCluster()
        purse = Purse(fake)
        await quota(fake, 1, 1)
        await purse.refresh(["team"], T0 + 3600)
        assert len(purse.allow([wish("a", 2)], T0 + 3600)) == 1
        await quota(fake, 9, 1)
        await purse.refresh(["team"], T0)
        assert purse.allow([wish("a", 2)], T0) == {}

    asyncio.run(main())


def test_the_last_gpu_goes_to_the_needier_and_both_say_why() -> None:
    async def test(on: Stage) -> None:
        gpu = {"accelerator": {"memory": "80Gi"}}
        await on.model(spec=gpu)
        await on.model("other", spec=gpu, minReplicas=0)
        await on.pod("one")
        await quota(on.fake, 2, 1)
        await on.pass_time(3)
        on.queued, on.oldest_s, on.in_flight, on.also = 200, 2.0, 64, {"other": 3}
        await on.pass_time(3)
        assert (on.replicas, on.replicas_of("other")) == (1, 1)
        held = on.actor.record.lines(KEY)[-1]
        assert '"name":"budget","effect":"2 → 1"' in held
        assert "team/demo 1 of 2 wanted, team/other 1 of 1 wanted" in held
        assert replay(on.actor.record.lines()).differences == ()
        await quota(on.fake, 3, 2)
        await on.pod("second", model="other")
        await on.settle()
        on.also = {}
        await on.pass_time(10)
        assert on.replicas == 2, "there is one more now"

    play(test)


def test_models_that_do_not_scale_use_what_they_use() -> None:
    """Under Off and Advise, and beside another scaler, replicas are others' use: nothing is asked for them."""

    async def test(on: Stage) -> None:
        gpu = {"accelerator": {"memory": "80Gi"}}
        await on.model(spec=gpu)
        await on.model("advised", spec=gpu, mode="Advise")
        await on.pod("one")
        await on.pod("two", model="advised")
        await quota(on.fake, 3, 2)
        on.queued, on.oldest_s, on.in_flight, on.also = 200, 2.0, 64, {"advised": 99}
        await on.pass_time(10)
        assert on.replicas == 2
        assert "budget" in on.actor.record.lines(KEY)[-1]
        assert on.fake.objects["deployments", ("team", "advised")]["spec"]["replicas"] == 1

    play(test)


def test_quotas_of_namespaces_without_an_autoscaled_model_are_not_asked_for() -> None:
    async def test(on: Stage) -> None:
        await on.model(mode="Off")
        await on.pass_time(10)
        assert not [path for _, path in on.fake.requests if "resourcequotas" in path]
        assert any("deployments" in path for _, path in on.fake.requests)

    play(test)


@pytest.mark.apiserver
def test_a_quota_as_the_api_server_shows_it(apiserver: ApiServer, namespace: str) -> None:
    """Only the controller that counts is missing there: its part, the status, is written by hand."""

    async def main() -> None:
        async with bench(str(apiserver.kubeconfig), namespace) as on:
            hard = {f"requests.{GPU}": "2", "pods": "10", "cpu": "64"}
            await on.create(QUOTAS, "team", {"spec": {"hard": hard}})
            used = {f"requests.{GPU}": "1", "pods": "1", "cpu": "500m"}
            await on.patch(QUOTAS, "team", {"status": {"hard": hard, "used": used}}, "status")
            purse = Purse(on.client)
            await purse.refresh([namespace], T0)
            found = purse.allow([wish("a", 3, namespace=namespace)], T0)
            assert {name: allowed.most for (_, name), allowed in found.items()} == {"a": 2}
            assert f"no more requests.{GPU} of the quota of namespace {namespace}" in found[namespace, "a"].detail

    asyncio.run(main())
