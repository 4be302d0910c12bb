"""Schedules and overrides in the operator: the clock alone changes bounds, the API server checks their shape."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.resources import MODELS
from headrace.scaling.record import replay
from headrace.testing.stage import KEY, START, Stage, play


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%H:%M")


def test_a_window_opens_and_closes_without_a_write_by_anybody() -> None:
    async def test(on: Stage) -> None:
        window = {"name": "rush", "start": clock(60), "end": clock(120), "minReplicas": 3}
        await on.model(schedules=[window], downAfter="10s")
        await on.pod("one")
        await on.pass_time(55)
        assert on.replicas == 1
        assert "by schedule" not in on.condition("ScalingActive")["message"]
        await on.pass_time(10)
        assert on.replicas == 3
        assert "between 3 and 4 replicas by schedule rush" in on.condition("ScalingActive")["message"]
        (last, *_) = on.status["scaling"]["lastDecisions"]
        assert (last["from"], last["to"], last["reason"]) == (1, 3, "Schedule")
        assert last["guards"][-1]["name"] == "schedule"
        assert "without it 1" in last["guards"][-1]["detail"]
        (event,) = await on.scalings()
        assert "schedule rush" in event["note"]
        for name in ("two", "three"):
            await on.pod(name)
        await on.pass_time(120)
        assert on.replicas == 1
        assert "between 1 and 4 replicas;" in on.condition("ScalingActive")["message"]
        assert replay(on.actor.record.lines(KEY)).differences == ()

    play(test)


def test_an_override_holds_against_load_and_expires_by_itself() -> None:
    async def test(on: Stage) -> None:
        until = datetime.fromtimestamp(START + 60, UTC).isoformat()
        await on.model(override={"replicas": 1, "until": until})
        await on.pod("one")
        on.queued, on.oldest_s, on.in_flight = 200, 2.0, 64
        await on.pass_time(55)
        assert on.replicas == 1
        assert "override to 1 until" in on.condition("ScalingActive")["message"]
        await on.pass_time(10)
        assert on.replicas > 1
        assert on.status["scaling"]["lastDecisions"][0]["reason"] == "QueueAge"

    play(test)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"override": {"replicas": 2, "until": "2100-01-01T00:00:00Z"}}, "Override", id="override"),
        pytest.param(
            {"schedules": [{"name": "day", "start": "00:00", "end": "23:59", "minReplicas": 2}]},
            "Schedule",
            id="schedule",
        ),
        pytest.param({"minReplicas": 2}, "MinReplicas", id="minimum"),
    ],
)
def test_bounds_that_an_edit_brings_are_told_like_any_change(change: dict[str, Any], reason: str) -> None:
    async def test(on: Stage) -> None:
        await on.model(downAfter="10s")
        await on.pod("one")
        await on.pass_time(5)
        path = MODELS.path("team", "demo")
        await on.fake.patch(path, {"spec": {"scaling": change}})
        await on.settle()
        await on.pass_time(3)
        assert on.replicas == 2
        (last, *_) = on.status["scaling"]["lastDecisions"]
        assert (last["from"], last["to"], last["reason"]) == (1, 2, reason)
        await on.pod("two")
        await on.fake.patch(path, {"spec": {"scaling": dict.fromkeys(change)}})
        await on.settle()
        await on.pass_time(120)
        assert on.replicas == 1
        assert [(d["from"], d["to"]) for d in on.status["scaling"]["lastDecisions"]] == [(2, 1), (1, 2)]
        assert sorted(event["reason"] for event in await on.scalings()) == ["ScaledDown", "ScaledUp"]

    play(test)


def test_zero_by_hand_says_that_no_request_wakes_it() -> None:
    async def test(on: Stage) -> None:
        until = datetime.fromtimestamp(START + 600, UTC).isoformat()
        await on.model(override={"replicas": 0, "until": until})
        on.queued, on.oldest_s = 5, 1.0
        await on.pass_time(5)
        assert on.replicas == 0
        assert "no request wakes the Model meanwhile" in on.condition("WorkloadReady")["message"]

    play(test)


def test_an_unknown_time_zone_stalls_with_its_field() -> None:
    async def test(on: Stage) -> None:
        window = {"name": "a", "start": "08:00", "end": "09:00", "minReplicas": 1, "timeZone": "Mars/Olympus"}
        await on.model(schedules=[window])
        assert on.condition("Stalled")["reason"] == "InvalidSpec"
        assert on.condition("Accepted")["message"].startswith("spec.scaling.schedules[0].timeZone: 'Mars/Olympus'")

    play(test)


WINDOW: dict[str, Any] = {"name": "a", "start": "08:00", "end": "18:00", "minReplicas": 1}
ADMITTED = {
    "a window": ({"schedules": [{**WINDOW, "days": ["Mon"], "timeZone": "America/Argentina/Buenos_Aires"}]}, ""),
    "an override": ({"override": {"replicas": 3, "until": "2027-01-01T00:00:00Z"}, "weight": 5}, ""),
    "a window that bounds nothing": (
        {"schedules": [{k: v for k, v in WINDOW.items() if k != "minReplicas"}]},
        "spec.scaling.schedules[0]: Invalid value",
    ),
    "crossed within the window": (
        {"schedules": [{**WINDOW, "minReplicas": 3, "maxReplicas": 2}]},
        "spec.scaling.schedules[0].minReplicas: Invalid value",
    ),
    "crossed with the spec": (
        {"schedules": [{**WINDOW, "minReplicas": 9}]},
        "spec.scaling.schedules: Invalid value",
    ),
    "an hour that is none": ({"schedules": [{**WINDOW, "start": "24:00"}]}, "spec.scaling.schedules[0].start"),
    "a day that is none": ({"schedules": [{**WINDOW, "days": ["Monday"]}]}, "spec.scaling.schedules[0].days[0]"),
    "one name twice": ({"schedules": [WINDOW, WINDOW]}, "spec.scaling.schedules[1]: Duplicate value"),
    "a day twice": ({"schedules": [{**WINDOW, "days": ["Mon", "Mon"]}]}, "spec.scaling.schedules[0].days[1]"),
    "an end that is no time": (
        {"override": {"replicas": 1, "until": "tomorrow"}},
        "spec.scaling.override.until",
    ),
    "no end": ({"override": {"replicas": 1}}, "spec.scaling.override.until: Required value"),
    "no weight": ({"weight": 0}, "spec.scaling.weight"),
}


@pytest.mark.apiserver
@pytest.mark.parametrize(("scaling", "refused"), ADMITTED.values(), ids=ADMITTED)
def test_what_the_api_server_says_of_times(
    apiserver: ApiServer, namespace: str, scaling: dict[str, Any], refused: str
) -> None:
    spec = {"source": {"uri": "builtin://demo"}, "scaling": {"mode": "Auto", "maxReplicas": 4, **scaling}}
    given = {"apiVersion": "headrace.dev/v1alpha1", "kind": "Model", "metadata": {"name": "x"}, "spec": spec}
    done = apiserver.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(given))
    assert (done.returncode != 0) == bool(refused), done.stderr
    assert refused in done.stderr
