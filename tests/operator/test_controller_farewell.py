"""Before there are fewer replicas, the pods that are worth least are marked to go first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.api.gateway_state import EngineReport
from headrace.cluster.apply import Applier
from headrace.cluster.client import Object
from headrace.cluster.errors import ApiError, ClusterError, NotLeader, Unreachable
from headrace.cluster.resources import DEPLOYMENTS, MODELS, PODS
from headrace.controller.farewell import COST, Farewell
from headrace.controller.store import Store
from headrace.testing.fake_cluster import FakeCluster
from headrace.testing.running import bench, running, settings_for
from headrace.testing.stage import Stage, play
from headrace_wire.protocol import EngineState, ModelInfo

Pod = tuple[str, bool, int | None, str | None]
"""Name, ready, tokens in flight, the mark that it bears."""


def engine(name: str, pages: int | None) -> EngineReport:
    state = None if pages is None else EngineState(model=ModelInfo(name="m"), total=100, free=100 - pages)
    return EngineReport(pod=name, address="x", age_s=0.1, state=state)


async def pods_of(fake: FakeCluster, given: list[Pod]) -> list[Object]:
    made = []
    for name, ready, _, mark in given:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        annotations = {"annotations": {COST: mark, "theirs": "x"}} if mark is not None else {}
        metadata = {"name": name, "namespace": "team", **annotations}
        made.append(await fake.create(PODS, {"metadata": metadata, "status": {"conditions": conditions}}))
    return made


def marks(fake: FakeCluster) -> dict[str, str]:
    found = {
        k[1]: (o["metadata"].get("annotations") or {}).get(COST)
        for (kind, k), o in fake.objects.items()
        if kind == "pods"
    }
    return {name: cost for name, cost in found.items() if cost is not None}


MARKED = {
    "the idlest": ([("a", True, 5, None), ("b", True, 0, None), ("c", True, 9, None)], 1, {"b": "-1"}, 1),
    "two of three": ([("a", True, 5, None), ("b", True, 0, None), ("c", True, 9, None)], 2, {"a": "-1", "b": "-1"}, 2),
    "one that is not ready goes anyway": ([("a", True, 5, None), ("b", False, None, None)], 1, {}, 0),
    "one beside it": ([("a", True, 5, None), ("b", False, None, None), ("c", True, 0, None)], 2, {"c": "-1"}, 1),
    "a mark of before is taken away": ([("a", True, 5, "-1"), ("b", True, 0, None)], 1, {"b": "-1"}, 2),
    "marked already": ([("a", True, 5, None), ("b", True, 0, "-1")], 1, {"b": "-1"}, 0),
    "nobody reports": ([("a", True, None, None), ("b", True, None, None)], 1, {"a": "-1"}, 1),
}  # fmt: skip


@pytest.mark.parametrize(("given", "fewer", "expected", "writes"), MARKED.values(), ids=MARKED)
def test_marks(given: list[Pod], fewer: int, expected: dict[str, str], writes: int) -> None:
    async def main() -> None:
        fake = FakeCluster()
        pods = await pods_of(fake, given)
        reports = [engine(name, pages) for name, _, pages, _ in given]
        await Farewell(Store(), Applier(fake, "headrace.hr")).mark(pods, reports, fewer)
        assert marks(fake) == expected
        assert sum(1 for method, _ in fake.requests if method == "PATCH") == writes
        kept = [o["metadata"].get("annotations", {}).get("theirs") for o in fake.objects.values()]
        assert kept == [None if mark is None else "x" for *_, mark in given], "others' annotations stay"

    asyncio.run(main())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(ApiError(403, {"message": "no right"}), id="not allowed"),
        pytest.param(ApiError(404, {"message": "gone"}), id="gone"),
        pytest.param(Unreachable("away"), id="API server away"),
    ],
)
def test_a_mark_that_fails_stops_nothing(fault: ClusterError) -> None:
    async def test(on: Stage) -> None:
        await on.model(mode="Off", spec={"replicas": 2, "scaling": {"mode": "Off"}})
        await on.pod("one")
        await on.pod("two")
        await on.settle()
        on.fake.objects["models", ("team", "demo")]["spec"]["replicas"] = 1
        await on.leader.attempt()
        on._see()
        on.fake.fail = [fault]
        await on.models.reconcile(("team", "demo"))
        assert marks(on.fake) == {}
        assert on.replicas == 1

    play(test)


def test_who_does_not_lead_marks_nothing() -> None:
    def refuse() -> None:
        raise NotLeader("another does")

    async def main() -> None:
        fake = FakeCluster()
        pods = await pods_of(fake, [("a", True, 0, None), ("b", True, 1, None)])
        with pytest.raises(NotLeader):
            await Farewell(Store(), Applier(fake, "headrace.hr", refuse)).mark(pods, [], 1)
        assert marks(fake) == {}

    asyncio.run(main())


def test_the_mark_comes_before_the_smaller_number() -> None:
    async def test(on: Stage) -> None:
        await on.model(minReplicas=1, downAfter="10s")
        await on.pod("one")
        on.queued, on.oldest_s, on.in_flight = 5, 2.0, 64
        await on.pass_time(4)
        assert on.replicas == 2
        await on.pod("two")
        on.queued, on.oldest_s, on.in_flight = 0, None, 0
        await on.settle()
        await on.pass_time(60)
        assert on.replicas == 1
        assert marks(on.fake) == {"one": "-1"}, "both are idle: by name"
        pod, deployment = on.fake.objects["pods", ("team", "one")], on.fake.objects["deployments", ("team", "demo")]
        versions = [int(o["metadata"]["resourceVersion"]) for o in (pod, deployment)]
        assert versions == sorted(versions), "each was last changed by this"

    play(test)


@pytest.mark.apiserver
def test_on_a_real_api_server(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        config = str(apiserver.kubeconfig)
        async with bench(config, namespace) as on, running(settings_for(config, namespace)):
            await on.model(replicas=2)
            deployment = await on.until("a Deployment", lambda: on.get(DEPLOYMENTS), within_s=60)
            revision = deployment["spec"]["template"]["metadata"]["labels"]["headrace.dev/revision"]
            ready: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
            for name in ("one", "two"):
                await on.pod(name, revision, status=ready)

            async def seen(count: int) -> bool:
                model = await on.get(MODELS)
                return ((model or {}).get("status") or {}).get("readyReplicas") == count

            await on.until("both pods", lambda: seen(2), within_s=60)
            await on.patch(MODELS, "demo", {"spec": {"replicas": 1}})

            async def fewer() -> bool:
                return ((await on.get(DEPLOYMENTS)) or {})["spec"]["replicas"] == 1

            await on.until("fewer replicas", fewer, within_s=60)
            costs = [((await on.get(PODS, n)) or {})["metadata"].get("annotations") for n in ("one", "two")]
            assert costs == [{COST: "-1"}, None]

    asyncio.run(main())
