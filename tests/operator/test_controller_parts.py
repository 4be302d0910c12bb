"""The queue, the cache, what a change concerns, parsing, and the health page."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.model import Model
from headrace.cli.logs import JsonFormatter
from headrace.cluster.client import Object
from headrace.cluster.resources import DEPLOYMENTS, MODELS, PODS, PROFILES, SERVICES, SLOS, TENANTS
from headrace.controller.health import STUCK_S, Signs, Sources, serve
from headrace.controller.measures import Measures
from headrace.controller.parse import SpecError, parse, parse_model
from headrace.controller.queue import KeyedQueue
from headrace.controller.resync import Resync
from headrace.controller.store import Store
from headrace.controller.triggers import Triggers, kopf_settings
from headrace.controller.work import Work, concerned
from headrace.testing.fake_cluster import FakeCluster


def obj(name: str, version: int = 1, *, generation: int = 1, **parts: Any) -> Object:
    metadata = {
        "namespace": "a", "name": name, "uid": name, "generation": generation, "resourceVersion": str(version),
        **parts.pop("metadata", {}),
    }  # fmt: skip
    return {"metadata": metadata, **parts}


# The queue


def test_adds_of_one_key_coalesce() -> None:
    async def main() -> None:
        queue = KeyedQueue[str]()
        for _ in range(3):
            queue.add("x")
        assert await queue.get() == "x"
        queue.done("x")
        assert queue.idle

    asyncio.run(main())


def test_a_key_is_never_worked_on_twice_at_one_time_and_no_add_is_lost() -> None:
    async def main() -> None:
        queue = KeyedQueue[str]()
        queue.add("x")
        await queue.get()
        queue.add("x")
        queue.add("y")
        assert await queue.get() == "y", "x is busy"
        queue.done("x")
        assert await queue.get() == "x", "what came meanwhile is not lost"

    asyncio.run(main())


def test_failures_back_off_and_a_new_event_does_not_wait() -> None:
    async def main() -> None:
        queue = KeyedQueue[str](first_retry_s=10.0, longest_retry_s=25.0)
        queue.add("x")
        await queue.get()
        pauses = [queue.retry("x") for _ in range(4)]
        for pause, whole in zip(pauses, (10, 20, 25, 25), strict=True):
            assert 0.8 * whole <= pause <= whole
        queue.done("x")
        queue.add("x")
        async with asyncio.timeout(1):
            assert await queue.get() == "x"
        queue.forget("x")
        assert queue.retry("x") <= 10.0

    asyncio.run(main())


# The store


def test_an_older_object_does_not_replace_a_newer_one() -> None:
    store = Store()
    store.put(MODELS, obj("x", 5))
    store.put(MODELS, obj("x", 4))
    held = store.get(MODELS, ("a", "x"))
    assert held is not None
    assert held["metadata"]["resourceVersion"] == "5"


def test_a_list_replaces_and_what_events_told_since_stays() -> None:
    store = Store()
    for name, version in (("ghost", 3), ("same", 4), ("newer", 12), ("made", 11)):
        store.put(MODELS, obj(name, version))
    store.remove(MODELS, obj("removed", 11))
    changed = store.replace(MODELS, "a", [obj("same", 4), obj("newer", 9), obj("found", 8), obj("removed", 9)], "10")
    assert set(store.all(MODELS)) == {("a", "same"), ("a", "newer"), ("a", "made"), ("a", "found")}
    assert changed == {("a", "ghost"), ("a", "found")}


def test_a_list_of_one_namespace_leaves_the_others() -> None:
    store = Store()
    store.put(MODELS, obj("x", 1, metadata={"namespace": "b"}))
    store.replace(MODELS, "a", [], "10")
    assert set(store.all(MODELS)) == {("b", "x")}


def test_deleting_a_former_object_does_not_remove_its_successor() -> None:
    store = Store()
    store.put(MODELS, obj("x", 9, metadata={"uid": "new"}))
    store.remove(MODELS, obj("x", 8, metadata={"uid": "old"}))
    assert store.get(MODELS, ("a", "x")) is not None


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 30), st.booleans()), max_size=20))
def test_a_list_is_the_truth_of_its_version(history: list[tuple[str, int, bool]]) -> None:
    """Whatever is held that is not newer than the LIST is what the LIST says."""
    store = Store()
    for name, version, deleted in history:
        (store.remove if deleted else store.put)(MODELS, obj(name, version))
    store.replace(MODELS, "a", [obj("x", 15)], "15")
    for (_, name), held in store.all(MODELS).items():
        assert int(held["metadata"]["resourceVersion"]) > 15 or name == "x"


# What a change concerns


@pytest.fixture
def store() -> Store:
    store = Store()
    key = {"name": "k", "sha256": "a" * 64}
    store.put(MODELS, obj("m", spec={"serviceLevelRef": {"name": "s"}, "parallelismRef": {"name": "p"}}))
    store.put(MODELS, obj("n", spec={}))
    store.put(TENANTS, obj("t", spec={"apiKeys": [key]}))
    store.put(TENANTS, obj("u", spec={"apiKeys": [key]}))
    store.put(TENANTS, obj("v", spec={}))
    store.put(SLOS, obj("s"))
    store.put(PROFILES, obj("p"))
    return store


OWNER = {"ownerReferences": [{"controller": True, "kind": "Model", "name": "m"}]}


@pytest.mark.parametrize(
    ("resource", "before", "now", "expected"),
    [
        pytest.param(SERVICES, None, obj("m", metadata=OWNER), "models/m", id="a child: its owner"),
        pytest.param(SERVICES, None, obj("m"), "", id="a child of nobody"),
        pytest.param(PODS, None, obj("x", metadata={"labels": {"headrace.dev/model": "m"}}), "models/m", id="a pod"),
        pytest.param(MODELS, obj("m"), obj("m", 2), "models/m", id="a status: itself"),
        pytest.param(
            MODELS, obj("m"), obj("m", 2, generation=2),
            "models/m parallelismprofiles/p servicelevelobjectives/s tenants/t tenants/u tenants/v",
            id="a spec: all that may name it or that it may name",
        ),
        pytest.param(SLOS, obj("s"), obj("s", 2), "servicelevelobjectives/s", id="an objective's status"),
        pytest.param(
            SLOS, obj("s"), obj("s", 2, generation=2),
            "models/m servicelevelobjectives/s tenants/t tenants/u tenants/v",
            id="an objective's spec: its Models and the Tenants",
        ),
        pytest.param(
            PROFILES, obj("p"), None,
            "models/m parallelismprofiles/p tenants/t tenants/u tenants/v",
            id="a profile goes",
        ),
        pytest.param(
            TENANTS, obj("t", spec={"apiKeys": [{"sha256": "a" * 64}]}), None, "tenants/t tenants/u",
            id="a Tenant goes: who shares its key",
        ),
    ],
)  # fmt: skip
def test_what_a_change_concerns(
    store: Store, resource: Any, before: Object | None, now: Object | None, expected: str
) -> None:
    found = sorted(f"{r.plural}/{key[1]}" for r, key in set(concerned(store, resource, before, now)))
    assert " ".join(found) == expected


def test_a_relist_of_the_watches_asks_for_a_list_of_our_own() -> None:
    async def main() -> None:
        fake, store, queue = FakeCluster(), Store(), KeyedQueue[Work]()
        resync = Resync(fake, ["a"], store, queue)
        triggers = Triggers(store, queue, resync.soon)
        await fake.create(MODELS, {"metadata": {"name": "lives", "namespace": "a"}, "spec": {}})
        store.put(MODELS, obj("ghost", 0))
        store.put(DEPLOYMENTS, obj("ghost", 0, metadata=OWNER))
        task = asyncio.create_task(resync.run())
        await resync.listed.wait()
        store.put(MODELS, obj("ghost", 1))  # known from before a gap in the watch, in which it was deleted
        while not queue.idle:
            queue.done(await queue.get())
        fake._version = 9
        triggers.take(MODELS, {"type": None, "object": obj("lives", 1)})
        async with asyncio.timeout(5):
            while store.get(MODELS, ("a", "ghost")) is not None:
                work = await queue.get()
                queue.done(work)
        task.cancel()
        assert store.get(DEPLOYMENTS, ("a", "ghost")) is None
        assert set(store.all(MODELS)) == {("a", "lives")}

    asyncio.run(main())


def test_kopf_writes_nothing_of_its_own() -> None:
    settings = kopf_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True


# Parsing


def test_a_spec_error_names_the_field_as_the_user_wrote_it() -> None:
    bad = obj("x", spec={"source": {"uri": "builtin://demo"}, "scaling": {"minReplicas": -1}, "runtime": {"env": [{}]}})
    with pytest.raises(SpecError) as error:
        parse(Model, bad)
    fields = [problem.split(":")[0] for problem in error.value.problems]
    assert "spec.scaling.minReplicas" in fields
    assert "spec.runtime.env[0].name" in fields


def test_an_unreadable_status_counts_as_none_and_newer_fields_are_ignored() -> None:
    made = parse_model(obj("x", spec={"source": {"uri": "builtin://demo"}, "later": 1}, status={"replicas": "many"}))
    assert made.status.observed_generation == -1


# Logs and health


def test_logs_are_one_json_object_a_line_with_kind_and_name() -> None:
    record = logging.makeLogRecord(
        {"msg": "child was %s", "args": ("pruned",), "levelname": "INFO", "name": "x", "kind": "Service", "object": "a"}
    )
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["kind"], line["name"], line["level"]) == ("child was pruned", "Service", "a", "info")


def signs(**changes: Any) -> Signs:
    base: dict[str, Any] = {
        "leading": False, "holder": "other", "listed": True, "last_event_at": None, "last_reconcile_at": None,
        "last_list_at": 100.0, "started_at": 0.0, "queued": 0,
    }  # fmt: skip
    return Signs(**{**base, **changes})


def test_a_follower_is_ready_and_a_stuck_process_is_not_alive() -> None:
    assert signs().alive(100.0 + STUCK_S - 1)
    assert not signs().alive(100.0 + STUCK_S)
    assert signs(last_list_at=None).alive(STUCK_S - 1), "a start takes its time"

    async def main() -> None:
        present = [signs()]
        measures = Measures()
        measures.reconciled("Model", 0.1, ok=False)
        recorded = {("team", "demo"): ["{}"], None: ["{}", "[]"]}
        sources = Sources(lambda: present[0], measures, lambda key: recorded.get(key, []))
        runner, port = await serve("127.0.0.1", 0, sources)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            ready = await http.get("/readyz")
            assert ready.status_code == 200
            present[0] = signs(listed=False)
            assert (await http.get("/readyz")).status_code == 503
            metrics = (await http.get("/metrics")).text
            assert 'headrace_operator_reconcile_failures_total{kind="Model"} 1.0' in metrics
            decisions = await http.get("/debug/decisions")
            assert (decisions.text, decisions.headers["content-type"][:20]) == ("{}\n[]\n", "application/x-ndjson")
            assert (await http.get("/debug/decisions?model=team/demo")).text == "{}\n"
            assert (await http.get("/debug/decisions?model=team/other")).text == ""
        await runner.cleanup()

    asyncio.run(main())
