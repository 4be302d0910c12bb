"""The scaling loop: from gateways' states to replicas, once per change, on the leader, beside other scalers."""

from __future__ import annotations

import json
import logging

import pytest

from headrace.cluster.client import Object
from headrace.cluster.resources import DEPLOYMENTS, MODELS, PODS, TENANTS
from headrace.controller.gateways import targets_of
from headrace.scaling.record import replay
from headrace.testing.stage import KEY, Stage, play


def test_a_growing_queue_adds_a_replica_once_with_an_event_and_its_reason() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(3)
        assert on.replicas == 1
        on.queued, on.oldest_s, on.in_flight = 5, 0.5, 64
        await on.pass_time(4)
        assert on.replicas == 2
        (last, *_) = on.status["scaling"]["lastDecisions"]
        assert (last["from"], last["to"], last["reason"]) == (1, 2, "QueueAge")
        assert last["candidates"]
        (event,) = await on.scalings()
        assert (event["reason"], event["type"]) == ("ScaledUp", "Normal")
        assert "1 → 2 replicas" in event["note"]
        assert on.condition("ScalingActive")["status"] == "True"
        assert "Reconciling" not in {c["type"] for c in on.status["conditions"]}

    play(test)


def test_from_zero_and_back() -> None:
    async def test(on: Stage) -> None:
        await on.model(minReplicas=0, toZeroAfter="20s", downAfter="10s")
        assert on.replicas == 0
        assert on.condition("Ready")["reason"] == "ScaledToZero"
        for _ in range(2):  # the second cold request is delivered, like the first
            on.queued, on.oldest_s, on.idle_s = 1, 0.1, 0.1
            await on.pass_time(2)
            assert on.replicas == 1
            assert on.condition("WorkloadReady")["reason"] == "Starting"
            await on.pod("one")
            await on.settle()
            on.queued, on.oldest_s = 0, None
            await on.pass_time(1)
            assert on.condition("Ready")["status"] == "True"
            await on.pass_time(120)
            assert on.replicas == 0
            await on.fake.delete(PODS, "team", "one")
            await on.settle()
            assert on.condition("Ready")["reason"] == "ScaledToZero"

    play(test)


def test_a_silent_gateway_holds_and_the_condition_says_since_when() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(5)
        on.answers = False
        on.queued, on.oldest_s = 50, 30.0
        await on.pass_time(30)
        assert on.replicas == 1
        said = on.condition("ScalingActive")
        assert said["status"] == "Unknown"
        assert "since 20" in said["message"]
        version = on.fake.objects["models", KEY]["metadata"]["resourceVersion"]
        await on.pass_time(20)
        assert on.fake.objects["models", KEY]["metadata"]["resourceVersion"] == version, "no write each second"
        on.answers = True
        await on.pass_time(5)
        assert on.condition("ScalingActive")["status"] == "True"

    play(test)


def test_what_was_decided_is_recorded_and_replays(caplog: pytest.LogCaptureFixture) -> None:
    async def test(on: Stage) -> None:
        await on.model(mode="Off")
        await on.pass_time(300)
        on.fake.objects["models", KEY]["spec"]["scaling"]["mode"] = "Auto"
        await on.settle()
        await on.pod("one")
        await on.pass_time(5)
        on.queued, on.oldest_s, on.in_flight = 5, 0.5, 64
        await on.pass_time(4)
        on.answers = False
        await on.pass_time(4)
        lines = on.actor.record.lines(KEY)
        assert lines == on.actor.record.lines() and len(lines) < 600
        replayed = replay(lines)
        assert (replayed.decisions, replayed.changes > 0, replayed.differences) == (13, True, ())
        await on.fake.delete(MODELS, "team", "demo")
        await on.settle()
        await on.pass_time(1)
        assert on.actor.record.lines() == []

    with caplog.at_level(logging.INFO, "headrace.controller.actor"):
        play(test)
    logged = [json.loads(str(r.__dict__["decision"])) for r in caplog.records if "decision" in r.__dict__]
    assert 2 in {decision["replicas"] for decision in logged}
    assert len(logged) < 13, "only what is another decision than the last"


def test_an_idle_model_is_not_written() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(5)
        version = on.fake.objects["models", KEY]["metadata"]["resourceVersion"]
        await on.pass_time(300)
        assert on.fake.objects["models", KEY]["metadata"]["resourceVersion"] == version

    play(test)


def test_beside_another_scaler_nothing_is_written() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(3)
        path = DEPLOYMENTS.path("team", "demo", "scale")
        await on.fake.patch(path, {"spec": {"replicas": 3}}, params={"fieldManager": "hpa"})
        await on.settle()
        assert on.condition("ScalingActive")["reason"] == "Conflict"
        on.queued, on.oldest_s = 50, 30.0
        await on.pass_time(20)
        assert on.replicas == 3
        assert "'hpa'" in on.condition("ScalingActive")["message"]
        assert [event["reason"] for event in await on.scalings()] == ["Conflict"], "told once, and nothing is done"

    play(test)


def test_another_scaler_is_known_from_the_number_that_it_wrote() -> None:
    """The loop sees a Deployment with the other's number before reconcile does, and below the Model's least."""

    async def test(on: Stage) -> None:
        await on.model(minReplicas=2, maxReplicas=3)
        await on.pod("one")
        await on.pod("two")
        await on.pass_time(3)
        path = DEPLOYMENTS.path("team", "demo", "scale")
        await on.fake.patch(path, {"spec": {"replicas": 1}}, params={"fieldManager": "hpa"})
        on._see()
        await on.actor.tick()
        await on.settle()
        assert on.condition("ScalingActive")["reason"] == "Conflict"
        assert on.status["scaling"]["lastDecisions"] == []
        assert [event["reason"] for event in await on.scalings()] == ["Conflict"]
        assert on.replicas == 1

    play(test)


def test_advice_is_recorded_and_not_acted_on() -> None:
    async def test(on: Stage) -> None:
        await on.model(mode="Advise")
        await on.pod("one")
        on.queued, on.oldest_s, on.in_flight = 5, 2.0, 64
        await on.pass_time(10)
        assert on.replicas == 1
        assert on.status["scaling"]["desired"] >= 2
        assert on.status["scaling"]["lastDecisions"][0]["to"] >= 2
        assert on.condition("ScalingActive")["reason"] == "Advising"
        assert await on.scalings() == []

    play(test)


def test_a_follower_decides_nothing_and_remembers_nothing() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        on.queued, on.oldest_s = 5, 2.0
        await on.pass_time(1)
        on.clock.advance(60)
        assert not on.leader.leading
        await on.actor.tick()
        assert on.notes.models == {}
        assert on.notes.gateways == ()

    play(test)


def test_a_new_leader_holds_the_present_count_and_keeps_the_decisions() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        on.queued, on.oldest_s, on.in_flight = 5, 2.0, 64
        await on.pass_time(4)
        assert on.replicas == 2
        decisions = on.status["scaling"]["lastDecisions"]
        fresh = Stage(fake=on.fake, clock=on.clock)
        on.clock.advance(30)
        await fresh.leader.attempt()
        on.clock.advance(16)
        assert await fresh.leader.attempt()
        await fresh.settle()
        assert fresh.replicas == 2
        await fresh.pass_time(3)
        assert fresh.replicas == 2
        assert fresh.status["scaling"]["lastDecisions"] == decisions

    play(test)


def test_engines_that_differ_from_the_spec_are_named() -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(2)
        assert on.condition("EngineConformant")["status"] == "True"
        assert on.status["engine"]["blocks"] == 100

    play(test)


def test_a_tenant_is_enforced_when_the_gateway_says_so() -> None:
    async def test(on: Stage) -> None:
        await on.fake.create(TENANTS, {"metadata": {"name": "t", "namespace": "team"}, "spec": {}})
        await on.model()
        await on.pass_time(2)

        def enforced() -> str:
            conditions = on.fake.objects["tenants", ("team", "t")]["status"]["conditions"]
            return str(next(c["status"] for c in conditions if c["type"] == "Enforced"))

        assert enforced() == "False"
        on.tenant_generation = 1
        await on.pass_time(2)
        assert enforced() == "True"

    play(test)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        pytest.param(
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}, ("http://10.0.0.1:9", True), id="ready"
        ),
        pytest.param({"addresses": ["10.0.0.1"]}, ("http://10.0.0.1:9", True), id="unknown counts as ready"),
        pytest.param(
            {"addresses": ["fd00::1"], "conditions": {"ready": True}}, ("http://[fd00::1]:9", True), id="IPv6"
        ),
        pytest.param(
            {"addresses": ["10.0.0.1"], "conditions": {"ready": False, "serving": True, "terminating": True}},
            ("http://10.0.0.1:9", False),
            id="draining: its queue still counts",
        ),
        pytest.param({"addresses": ["10.0.0.1"], "conditions": {"ready": False}}, None, id="not ready"),
    ],
)
def test_gateways_are_found_in_endpoint_slices(endpoint: Object, expected: tuple[str, bool] | None) -> None:
    found = targets_of(iter([{"endpoints": [endpoint]}]), 9)
    assert [(t.url, t.ready) for t in found] == ([] if expected is None else [expected])
