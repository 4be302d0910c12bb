"""Namespaces without rights, queues under failure, wrong clocks, old definitions: the operator's parts on fakes."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headrace.cluster.apply import Applier
from headrace.cluster.client import Object
from headrace.cluster.errors import ApiError, api_error
from headrace.cluster.lease import Leader
from headrace.cluster.resources import LEASES, MODELS, Resource
from headrace.controller.main import _list_kinds
from headrace.controller.queue import KeyedQueue
from headrace.controller.resync import Resync
from headrace.controller.store import Store
from headrace.controller.triggers import kopf_settings
from headrace.controller.work import Work
from headrace.testing.clock import Clock
from headrace.testing.fake_cluster import FakeCluster

# Namespaces without rights


class Guarded(FakeCluster):
    """Refuses some namespaces, as RBAC does."""

    def __init__(self, *forbidden: str) -> None:
        super().__init__()
        self.forbidden = set(forbidden)

    async def list(
        self, resource: Resource, namespace: str | None, label_selector: str | None = None
    ) -> tuple[list[Object], str]:
        if namespace in self.forbidden:
            raise api_error(403, {"reason": "Forbidden", "message": f"cannot list {resource.plural} in {namespace}"})
        return await super().list(resource, namespace, label_selector)


async def _with_models(fake: FakeCluster, *namespaces: str) -> FakeCluster:
    for namespace in namespaces:
        await fake.create(MODELS, {"metadata": {"name": "m", "namespace": namespace}, "spec": {}})
    return fake


def _resync(fake: FakeCluster) -> tuple[Resync, Store, KeyedQueue[Work]]:
    store, queue = Store(), KeyedQueue[Work]()
    return Resync(fake, ("a", "b"), store, queue), store, queue


def test_a_namespace_without_rights_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        fake = Guarded("a")
        await _with_models(fake, "a", "b")
        resync, store, queue = _resync(fake)
        await resync.relist()
        await resync.relist()
        assert resync.listed.is_set()
        assert list(store.all(MODELS)) == [("b", "m")]
        assert len(queue) == 1
        fake.forbidden.clear()
        await resync.relist()
        assert sorted(store.all(MODELS)) == [("a", "m"), ("b", "m")]

    asyncio.run(main())
    told = [r for r in caplog.records if "not served" in r.getMessage()]
    assert len(told) == 1, "once, not with each LIST"


def test_rights_that_were_taken_away_do_not_empty_the_cache() -> None:
    async def main() -> None:
        fake = Guarded()
        await _with_models(fake, "a", "b")
        resync, store, _ = _resync(fake)
        await resync.relist()
        fake.forbidden.add("a")
        await resync.relist()
        assert sorted(store.all(MODELS)) == [("a", "m"), ("b", "m")]

    asyncio.run(main())


def test_without_any_rights_nothing_counts_as_listed() -> None:
    async def main() -> None:
        resync, _, _ = _resync(Guarded("a", "b"))
        with pytest.raises(ApiError, match="cannot list"):
            await resync.relist()
        assert not resync.listed.is_set()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("forbidden", "starts"),
    [
        pytest.param((), True, id="all rights"),
        pytest.param(("a",), True, id="not in the first namespace"),
        pytest.param(("a", "b"), False, id="nowhere"),
    ],
)
def test_the_start_waits_for_one_usable_namespace(forbidden: tuple[str, ...], starts: bool) -> None:
    async def main() -> None:
        if starts:
            await _list_kinds(Guarded(*forbidden), ("a", "b"))
        else:
            with pytest.raises(ApiError, match="cannot list"):
                await _list_kinds(Guarded(*forbidden), ("a", "b"))

    asyncio.run(main())


def test_kopf_never_gives_up() -> None:
    pauses = kopf_settings().networking.error_backoffs
    assert not isinstance(pauses, float)
    first, later = list(itertools.islice(iter(pauses), 8)), list(itertools.islice(iter(pauses), 5000, 5001))
    assert first == sorted(first)
    assert later == [30.0]
    assert list(itertools.islice(iter(pauses), 8)) == first, "each request begins anew"


# The queue under failure


def test_a_nudge_does_not_cut_a_pause_short_but_an_event_does() -> None:
    async def main() -> None:
        queue = KeyedQueue[str](first_retry_s=60.0)
        queue.nudge("a")
        assert await queue.get() == "a"
        queue.retry("a")
        queue.done("a")
        queue.nudge("a")
        assert len(queue) == 0
        queue.add("a")
        assert await queue.get() == "a"
        queue.done("a")

    asyncio.run(main())


# The Lease and wrong clocks


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", "nonsense"])
def test_the_time_that_a_lease_tells_is_not_believed(renewed: str) -> None:
    async def main() -> None:
        fake, clock = FakeCluster(), Clock(1000.0)
        spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": renewed}
        await fake.create(LEASES, {"metadata": {"name": "l", "namespace": "hr"}, "spec": spec})
        leader = Leader(fake, "hr", "l", "me", clock=clock)
        assert not await leader.attempt(), "it may be alive, whatever its clock says"
        clock.advance(14)
        assert not await leader.attempt()
        clock.advance(2)
        assert await leader.attempt(), "we saw no renewal for its whole duration"

    asyncio.run(main())


# A definition that is older than the operator


def test_a_definition_that_lacks_a_field_is_named_with_the_cure() -> None:
    async def main() -> None:
        fake = FakeCluster()
        fake.fail.append(api_error(500, {"message": ".status.source.shape: field not declared in schema"}))
        obj = {"metadata": {"name": "m", "namespace": "a"}, "status": {}}
        with pytest.raises(ApiError, match="upgrade the chart headrace-crds"):
            await Applier(fake, "headrace.hr").apply_status(MODELS, obj)
        fake.fail.append(api_error(500, {"message": "etcd is away"}))
        with pytest.raises(ApiError, match="etcd is away"):
            await Applier(fake, "headrace.hr").apply_status(MODELS, obj)

    asyncio.run(main())
