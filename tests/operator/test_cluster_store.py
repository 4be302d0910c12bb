"""The watched store and the Lease: against a fake API for faults and clocks, against a real one for behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.apply import Applier
from headrace.cluster.client import Client, Object, connect
from headrace.cluster.errors import ApiError, Conflict, NotLeader, Unreachable, api_error
from headrace.cluster.events import CONTROLLER, SERIES_WINDOW_S, Note, Recorder
from headrace.cluster.lease import LEASE_S, RENEW_DEADLINE_S, Leader
from headrace.cluster.resources import DEPLOYMENTS, EVENTS, LEASES, MODELS, SERVICES, Key
from headrace.cluster.watch import Watch
from headrace.testing.clock import Clock
from headrace.testing.fake_cluster import FakeCluster


def service(name: str, namespace: str = "a", **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"ports": [{"port": 80}]},
    }


async def until(check: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():  # noqa: ASYNC110  what is polled knows no Event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[Watch]:
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(5):
            await watch.synced.wait()
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def with_fake(test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    asyncio.run(test(FakeCluster()))  # type: ignore[arg-type]


def test_the_store_follows_and_tells() -> None:
    async def test(fake: FakeCluster) -> None:
        await fake.create(SERVICES, service("x", tier="1"))
        await fake.create(SERVICES, service("other"))
        told: list[Key] = []
        async with watching(Watch(fake, SERVICES, ["a"], "tier=1", told.append)) as watch:
            assert set(watch.objects) == {("a", "x")}
            await fake.create(SERVICES, service("y", tier="1"))
            await fake.create(SERVICES, service("z", namespace="b", tier="1"))
            await until(lambda: ("a", "y") in watch.objects)
            await fake.delete(SERVICES, "a", "x")
            await until(lambda: ("a", "x") not in watch.objects)
            assert told == [("a", "x"), ("a", "y"), ("a", "x")]
            assert watch.fresh_at is not None

    with_fake(test)


def test_what_vanished_while_the_history_was_forgotten_leaves_the_store() -> None:
    async def test(fake: FakeCluster) -> None:
        for name in ("stays", "goes"):
            await fake.create(SERVICES, service(name))
        told: list[Key] = []
        async with watching(Watch(fake, SERVICES, ["a"], on_change=told.append)) as watch:
            told.clear()
            del fake.objects["services", ("a", "goes")]  # without an event, as behind a compaction
            fake.forget_history()
            await until(lambda: set(watch.objects) == {("a", "stays")})
            assert told == [("a", "goes")]

    with_fake(test)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Unreachable("reset"), id="the connection is reset"),
        pytest.param(api_error(500, {}), id="the server fails"),
        pytest.param(api_error(403, {}), id="the right comes later"),
        pytest.param(api_error(410, {}), id="the page of a list has expired"),
    ],
)
def test_a_fault_only_delays(fault: Exception) -> None:
    async def test(fake: FakeCluster) -> None:
        await fake.create(SERVICES, service("x"))
        fake.fail = [fault, fault]  # type: ignore[list-item]
        async with watching(Watch(fake, SERVICES, ["a"])) as watch:
            assert set(watch.objects) == {("a", "x")}

    with_fake(test)


class EndingWatches(FakeCluster):
    """Ends each watch without a word after `after_s` seconds of its own clock, and blocks after `times` of them."""

    def __init__(self, after_s: float, times: int):
        super().__init__()
        self.clock, self.after_s, self.left, self.blocked = Clock(), after_s, times, asyncio.Event()

    async def watch(self, path: str, params: Mapping[str, str], *, inactivity_s: float) -> AsyncIterator[Object]:
        if self.left == 0:
            self.blocked.set()
            await asyncio.Event().wait()
        self.left -= 1
        self.clock.advance(self.after_s)
        for event in ():
            yield event


@pytest.mark.parametrize(
    ("after_s", "pauses"),
    [pytest.param(60.0, 0, id="its time was up"), pytest.param(0.01, 59, id="at once, again and again")],
)
def test_only_a_watch_that_ends_at_once_is_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after_s: float, pauses: int
) -> None:
    monkeypatch.setattr("headrace.cluster.watch.BACKOFF_S", (0.0, 0.0))

    async def test() -> None:
        fake = EndingWatches(after_s, times=60)
        watch = Watch(fake, SERVICES, ["a"], clock=fake.clock)
        async with watching(watch), asyncio.timeout(5):
            await fake.blocked.wait()
        assert watch.fresh_at == (fake.clock() if not pauses else 1_000.0), "an end in time is a word of the server"
        assert len([1 for method, _ in fake.requests if method == "LIST"]) == 1

    with caplog.at_level("DEBUG", "headrace.cluster.watch"):
        asyncio.run(test())
    assert len(caplog.records) == pauses
    assert [r.levelname for r in caplog.records].count("WARNING") == (2 if pauses else 0), "the 5th and the 50th"


def test_it_is_not_synced_before_every_namespace_is_listed() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.fail = [Unreachable("one")] * 2
        watch = Watch(fake, SERVICES, ["a", "b"])
        assert watch.fresh_at is None
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not watch.synced.is_set()
        await until(watch.synced.is_set)
        task.cancel()

    with_fake(test)


def test_a_real_server_feeds_the_store(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        key = (namespace, "x")
        async with (
            await connect(str(apiserver.kubeconfig)) as client,
            watching(Watch(client, SERVICES, [namespace])) as watch,
        ):
            await client.create(SERVICES, service("x", namespace))
            await until(lambda: key in watch.objects)
            await client.patch(SERVICES.path(*key), {"metadata": {"labels": {"a": "b"}}})
            await until(lambda: watch.objects[key]["metadata"].get("labels") == {"a": "b"})
            await client.delete(SERVICES, *key)
            await until(lambda: key not in watch.objects)

    asyncio.run(main())


# Leases


def test_one_leads_and_another_takes_over_after_the_lease() -> None:
    async def test(fake: FakeCluster) -> None:
        clock = Clock()
        first, second = (Leader(fake, "a", "l", who, clock=clock) for who in ("first", "second"))
        assert await first.attempt()
        assert not await second.attempt()
        clock.advance(LEASE_S - 1)
        assert not first.leading, "the fence falls before the lease ends"
        assert not await second.attempt()
        clock.advance(2)
        assert await second.attempt()
        assert second.leading
        assert not await first.attempt()
        assert first.holder == "second"
        with pytest.raises(NotLeader, match="second"):
            first.check()

    with_fake(test)


def test_renewal_keeps_it_and_others_judge_by_their_own_clock() -> None:
    async def test(fake: FakeCluster) -> None:
        clock = Clock()
        first, second = (Leader(fake, "a", "l", who, clock=clock) for who in ("first", "second"))
        for _ in range(10):
            assert await first.attempt()
            assert not await second.attempt()
            clock.advance(RENEW_DEADLINE_S - 1)
            assert first.leading

    with_fake(test)


def test_the_fence_counts_from_before_the_request() -> None:
    async def test(fake: FakeCluster) -> None:
        clock = Clock()
        slow = Leader(fake, "a", "l", "slow", clock=clock)
        request = fake.request

        async def delayed(*args: object, **kwargs: object) -> Object:
            clock.advance(2)
            return await request(*args, **kwargs)  # type: ignore[arg-type]

        fake.request = delayed  # type: ignore[method-assign]
        began = clock()
        assert await slow.attempt()
        clock.now = began + RENEW_DEADLINE_S - 0.1
        assert slow.leading
        clock.now = began + RENEW_DEADLINE_S
        assert not slow.leading

    with_fake(test)


def test_no_answer_means_no_leadership_in_time() -> None:
    async def test(fake: FakeCluster) -> None:
        clock = Clock()
        leader = Leader(fake, "a", "l", "first", clock=clock)
        await leader.attempt()
        for _ in range(6):
            clock.advance(2)
            fake.fail = [Unreachable("blackhole")]
            with pytest.raises(Unreachable):
                await leader.attempt()
        assert not leader.leading

    with_fake(test)


def test_two_that_take_an_abandoned_lease_at_once() -> None:
    async def test(fake: FakeCluster) -> None:
        leaders = [Leader(fake, "a", "l", who) for who in ("first", "second")]
        got = await asyncio.gather(*(leader.attempt() for leader in leaders))
        assert sorted(got) == [False, True]
        assert sum(leader.leading for leader in leaders) == 1

    with_fake(test)


def test_a_released_lease_is_taken_at_once(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        async with await connect(str(apiserver.kubeconfig)) as client:
            first, second = (Leader(client, namespace, "l", who) for who in ("first", "second"))
            assert await first.attempt()
            assert not await second.attempt()
            await first.release()
            assert not first.leading
            assert await second.attempt()
            lease = await client.get(LEASES, namespace, "l")
            assert lease["spec"]["holderIdentity"] == "second"
            assert lease["spec"]["leaseTransitions"] >= 1

    asyncio.run(main())


# Server-side apply: the fake answers as the real one


def deployment(namespace: str, replicas: int, image: str = "i") -> Object:
    labels = {"app": "x"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}},
        },
    }


async def _apply_story(client: Client, namespace: str) -> None:
    ours, theirs = Applier(client, "ours"), Applier(client, "theirs")
    written, owner = await ours.apply_workload(DEPLOYMENTS, deployment(namespace, 2))
    assert owner is None
    again, _ = await ours.apply_workload(DEPLOYMENTS, deployment(namespace, 2))
    assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]

    with pytest.raises(Conflict) as conflict:
        await theirs.apply(DEPLOYMENTS, deployment(namespace, 5))
    assert conflict.value.owners == {".spec.replicas": "ours"}

    await client.patch(DEPLOYMENTS.path(namespace, "x"), {"spec": {"replicas": 4}}, params={"fieldManager": "hpa"})
    written, owner = await ours.apply_workload(DEPLOYMENTS, deployment(namespace, 2))
    assert owner == "hpa"
    assert written["spec"]["replicas"] == 4
    written, owner = await ours.apply_workload(DEPLOYMENTS, deployment(namespace, 4))
    assert owner == "hpa", "agreement does not make it ours"

    stale = deployment(namespace, 4)
    stale["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ApiError):
        await ours.apply(DEPLOYMENTS, stale)


def test_apply_on_the_fake() -> None:
    with_fake(lambda fake: _apply_story(fake, "a"))


def test_apply_on_a_real_server(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        async with await connect(str(apiserver.kubeconfig)) as client:
            await _apply_story(client, namespace)

    asyncio.run(main())


def test_a_guard_stops_every_write() -> None:
    async def test(fake: FakeCluster) -> None:
        def refuse() -> None:
            raise NotLeader("no")

        applier = Applier(fake, "ours", refuse)
        for write in (
            applier.apply(SERVICES, service("x")),
            applier.apply_status(MODELS, service("x")),
            applier.delete(SERVICES, service("x")),
        ):
            with pytest.raises(NotLeader):
                await write
        assert fake.requests == []

    with_fake(test)


# Events


def test_equal_events_become_a_series_within_the_window() -> None:
    async def test(fake: FakeCluster) -> None:
        clock = Clock()
        recorder = Recorder(fake, "me", lambda: None, clock)
        about = await fake.create(MODELS, {"metadata": {"name": "demo", "namespace": "a"}})
        note = Note("Normal", "ScaledUp", "Scale", "1 → 2 replicas")
        for _ in range(3):
            await recorder.write(MODELS, about, note)
        clock.advance(SERIES_WINDOW_S + 1)
        await recorder.write(MODELS, about, note)
        items, _ = await fake.list(EVENTS, "a")
        assert sorted((e.get("series") or {}).get("count", 1) for e in items) == [1, 3]

    with_fake(test)


def test_events_on_a_real_server(apiserver: ApiServer, namespace: str) -> None:
    async def main() -> None:
        async with await connect(str(apiserver.kubeconfig)) as client:
            about = await client.create(SERVICES, service("x", namespace))
            recorder = Recorder(client, "me", lambda: None)
            for _ in range(2):
                await recorder.write(SERVICES, about, Note("Warning", "Broken", "Reconcile", "why: " + "ü" * 2000))
            events, _ = await client.list(EVENTS, namespace)  # the API server writes its own about a Service's address
            (event,) = [e for e in events if e["reportingController"] == CONTROLLER]
            assert event["series"]["count"] == 2
            assert event["regarding"]["uid"] == about["metadata"]["uid"]
            assert len(event["note"].encode()) <= 1024

    asyncio.run(main())
