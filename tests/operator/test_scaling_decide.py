"""decide: one table of situations."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from headrace.scaling import Memory, Reason, Replicas
from headrace.scaling.samples import GatewayReport, merge
from headrace.testing.scaling_world import (
    KEY,
    T0,
    Gauge,
    World,
    answer,
    ready,
    served,
    world,
)

# ---- up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gauge", "replicas", "expected"),
    [
        pytest.param(Gauge(in_flight=4), ready(1), (1, Reason.STEADY), id="full and nobody waits"),
        pytest.param(Gauge(2, 0.3, 4), ready(1), (1, Reason.STEADY), id="waits shorter than allowed"),
        pytest.param(Gauge(2, 1.1, 4), ready(1), (2, Reason.QUEUE_AGE), id="six requests need two times four slots"),
        pytest.param(Gauge(5, 1.1, 4), ready(1), (2, Reason.QUEUE_AGE), id="nine would need three, at most double"),
        pytest.param(Gauge(5, 1.1, 8), ready(2), (4, Reason.QUEUE_AGE), id="thirteen need four"),
        pytest.param(
            Gauge(9, 9.0, 4),
            ready(1, current=3, pending=2, changed_at=T0 + 20),
            (4, Reason.QUEUE_AGE),
            id="pending is supply",
        ),
        pytest.param(
            Gauge(5, 9.0, 4),
            ready(1, current=3, pending=2, changed_at=T0 + 20),
            (3, Reason.STEADY),
            id="pending suffices",
        ),
        pytest.param(
            Gauge(5, 9.0, 4), ready(1, current=3, pending=2), (4, Reason.QUEUE_AGE), id="pending for too long is none"
        ),
        pytest.param(Gauge(90, 9.0, 32), ready(8), (8, Reason.MAX_REPLICAS), id="at the most"),
        pytest.param(Gauge(90, 9.0, 28), ready(7), (8, Reason.QUEUE_AGE), id="up to the most"),
        pytest.param(Gauge(5, 9.0), ready(1, ready=0, pending=1), (1, Reason.STEADY), id="starting: four rounds"),
        pytest.param(
            Gauge(40, 9.0), ready(1, ready=0, pending=1), (2, Reason.QUEUE_AGE), id="starting: more than that"
        ),
    ],
)
def test_queue_age(gauge: Gauge, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    seen = world().run(25, Gauge(in_flight=4))
    seen.run(1, gauge)
    assert answer(seen.decide(replicas)) == expected


def test_an_age_that_grows_towards_its_bound_is_followed() -> None:
    seen = world().run(25, Gauge(in_flight=4))
    for age in (0.1, 0.25, 0.4, 0.55, 0.7):
        seen.run(1, Gauge(2, age, 4))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)
    steady = world().run(25, Gauge(2, 0.7, 4))
    assert answer(steady.decide(ready(1))) == (1, Reason.STEADY)


def test_a_low_class_that_may_wait_buys_nothing_and_counts_only_when_it_is_late() -> None:
    seen = world().run(25, Gauge(in_flight=4))
    seen.run(1, Gauge(in_flight=4), Gauge(queued=100, age=20.0))
    assert answer(seen.decide(ready(2))) == (2, Reason.STEADY)
    seen.run(1, Gauge(1, 1.5, 8), Gauge(queued=100, age=20.0))
    assert answer(seen.decide(ready(2))) == (3, Reason.QUEUE_AGE)  # nine requests, the hundred apart
    seen.run(1, Gauge(1, 1.5, 8), Gauge(queued=100, age=31.0))
    assert answer(seen.decide(ready(2))) == (4, Reason.QUEUE_AGE)


def test_requests_that_wait_inside_an_engine_count() -> None:
    seen = world()
    seen.engine = {"running": 4, "waiting": 4, "oldest_waiting_s": 2.0}
    seen.run(25, Gauge(in_flight=8))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)


def test_waiting_beside_free_slots_adds_one_only_when_it_lasts() -> None:
    seen = world().run(25, Gauge(in_flight=1))
    seen.run(2, Gauge(1, 1.5, 1))
    assert answer(seen.decide(ready(1))) == (1, Reason.STEADY)
    seen.run(5, Gauge(1, 3.5, 1))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)
    assert seen.decide(ready(2, ready=1, pending=1)).replicas == 2


def test_a_replica_that_has_just_become_ready_is_not_taken_for_too_small() -> None:
    """From zero: the waiting request's age is a cold start's; it fits the slots as soon as there are any."""
    seen = world()
    seen.engines = 0
    seen.run(25, Gauge(1, 20.0))
    seen.engines = 1
    seen.run(1, Gauge(1, 21.0))
    assert answer(seen.decide(ready(1))) == (1, Reason.STEADY)


def test_steps_up_keep_a_short_distance() -> None:
    seen = world().run(25, Gauge(50, 9.0, 4))
    first = seen.decide(ready(1))
    assert first.replicas == 2
    seen.run(2, Gauge(50, 9.0, 4))
    held = seen.decide(ready(1, current=2, pending=1), first.memory)
    assert answer(held) == (2, Reason.COOLDOWN)
    seen.run(3, Gauge(50, 9.0, 4))
    assert answer(seen.decide(ready(1, current=2, pending=1), held.memory)) == (4, Reason.QUEUE_AGE)


@pytest.mark.parametrize(
    ("gauge", "expected"),
    [
        pytest.param(Gauge(1, 0.1), (1, Reason.FROM_ZERO), id="one waits"),
        pytest.param(Gauge(500, 0.1), (1, Reason.FROM_ZERO), id="many wait: one first"),
        pytest.param(Gauge(), (0, Reason.STEADY), id="nobody"),
        pytest.param(Gauge(math.nan), (0, Reason.INCOMPLETE), id="NaN is nobody knows"),
    ],
)
def test_from_zero(gauge: Gauge, expected: tuple[int, Reason]) -> None:
    seen = world()
    seen.engines = 0
    seen.run(25).run(1, gauge)
    assert answer(seen.decide(ready(0))) == expected


def test_from_zero_without_any_history_and_with_a_second_gateway_silent() -> None:
    seen = world()
    seen.engines = 0
    seen.now += 1
    state = seen.state({"interactive": Gauge(1, 0.2)})
    reports = [GatewayReport("a", seen.now, state), GatewayReport("b", seen.now, None)]
    seen.window.add(merge(reports, seen.now, [KEY])[KEY])
    assert answer(seen.decide(ready(0))) == (1, Reason.FROM_ZERO)


def with_goodput(in_flight: int, good_percent: int = 50) -> World:
    seen = world()
    for n in range(70):
        seen.run(1, served(10 * n, n * good_percent // 10, in_flight))
    return seen


@pytest.mark.parametrize(
    ("in_flight", "good", "replicas", "expected"),
    [
        pytest.param(8, 50, ready(2), (3, Reason.GOODPUT), id="late in full batches"),
        pytest.param(8, 100, ready(2), (2, Reason.STEADY), id="full and good"),
        pytest.param(5, 50, ready(2), (2, Reason.STEADY), id="late in half-empty batches: more would not help"),
        pytest.param(8, 50, ready(2, changed_at=T0 + 40), (2, Reason.STEADY), id="the last change is young"),
        pytest.param(8, 50, ready(2, current=3, pending=1), (3, Reason.STEADY), id="one is on its way"),
        pytest.param(32, 0, ready(8), (8, Reason.MAX_REPLICAS), id="at the most"),
    ],
)
def test_goodput(in_flight: int, good: int, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    assert answer(with_goodput(in_flight, good).decide(replicas)) == expected


# ---- down -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "in_flight", "replicas", "expected"),
    [
        pytest.param(25, 3, ready(2), (1, Reason.UNDERUSED), id="three of four slots, 80 percent"),
        pytest.param(25, 4, ready(2), (2, Reason.STEADY), id="four of four slots"),
        pytest.param(15, 3, ready(2), (2, Reason.WARMING_UP), id="not for long enough"),
        pytest.param(25, 3, ready(2, cold_start_s=30.0), (2, Reason.STEADY), id="not as long as a cold start"),
        pytest.param(35, 3, ready(2, cold_start_s=30.0), (1, Reason.UNDERUSED), id="as long as a cold start"),
        pytest.param(25, 0, ready(8), (7, Reason.UNDERUSED), id="one step at a time"),
        pytest.param(25, 0, ready(1), (1, Reason.STEADY), id="the last one is toZero's"),
        pytest.param(
            25, 3, ready(1, current=2, pending=1, changed_at=T0 - 100), (2, Reason.STEADY), id="pending is no supply"
        ),
        pytest.param(25, 3, ready(2, changed_at=T0 + 10), (2, Reason.COOLDOWN), id="the last change is young"),
        pytest.param(25, 3, ready(2, changed_at=None), (1, Reason.UNDERUSED), id="nobody knows of a change"),
    ],
)
def test_down(seconds: int, in_flight: int, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    assert answer(world().run(seconds, Gauge(in_flight=in_flight)).decide(replicas)) == expected


def test_the_peak_of_the_whole_span_counts_also_what_was_queued() -> None:
    seen = world().run(5, Gauge(in_flight=1)).run(1, Gauge(2, 0.1, 2)).run(18, Gauge(in_flight=1))
    assert seen.decide(ready(2)).replicas == 2
    assert seen.run(3, Gauge(in_flight=1)).decide(ready(2)).replicas == 1


@pytest.mark.parametrize("where", ["gateway", "engine"])
def test_whoever_waits_holds(where: str) -> None:
    seen = world().run(25)
    if where == "engine":
        seen.engine = {"waiting": 1, "oldest_waiting_s": 0.1}
    seen.run(1, Gauge(1, 0.1) if where == "gateway" else Gauge(in_flight=1))
    assert seen.decide(ready(2)).replicas == 2


def test_a_step_down_after_a_step_down_waits_less_than_after_a_step_up() -> None:
    seen = world().run(30, Gauge(in_flight=1))
    first = seen.decide(ready(4))
    assert first.replicas == 3
    seen.run(10, Gauge(in_flight=1))
    three = ready(3, changed_at=seen.now - 9)
    assert answer(seen.decide(three, first.memory)) == (3, Reason.COOLDOWN)
    seen.run(6, Gauge(in_flight=1))
    assert answer(seen.decide(three, first.memory)) == (2, Reason.UNDERUSED)
    assert answer(seen.decide(three, Memory(up_at=seen.now - 9))) == (3, Reason.COOLDOWN)


def test_late_requests_in_busy_batches_hold_and_in_idle_ones_do_not() -> None:
    busy = with_goodput(in_flight=6).decide(ready(3))
    assert answer(busy) == (3, Reason.STEADY)
    assert "goodput is" in next(c.detail for c in busy.candidates if c.name == "down")
    assert answer(with_goodput(2).decide(ready(3))) == (2, Reason.UNDERUSED)


def test_replicas_stuck_for_very_long_do_not_freeze_the_others() -> None:
    stuck = Replicas(current=3, ready=2, pending=1, changed_at=T0 - 1000, cold_start_s=10.0)
    assert answer(world().run(25, Gauge(in_flight=3)).decide(stuck)) == (2, Reason.UNDERUSED)
    crowded = world().run(25, Gauge(in_flight=7))
    assert crowded.decide(stuck).replicas == 3  # two serving replicas hold 6.4 at most


@pytest.mark.parametrize(
    ("last", "uptime", "seconds", "least", "expected"),
    [
        pytest.param(70.0, 1e5, 65, 0, (0, Reason.TO_ZERO), id="idle"),
        pytest.param(None, 1e5, 65, 0, (0, Reason.TO_ZERO), id="no request since the gateway's start"),
        pytest.param(None, 30.0, 65, 0, (1, Reason.STEADY), id="the gateway is too young to know"),
        pytest.param(50.0, 1e5, 65, 0, (1, Reason.STEADY), id="a request 50 s ago"),
        pytest.param(70.0, 1e5, 55, 0, (1, Reason.STEADY), id="not watched for long enough"),
        pytest.param(70.0, 1e5, 65, 1, (1, Reason.STEADY), id="minReplicas 1"),
        pytest.param(math.nan, 1e5, 65, 0, (1, Reason.INCOMPLETE), id="NaN"),
    ],
)
def test_to_zero(last: Any, uptime: float, seconds: int, least: int, expected: tuple[int, Reason]) -> None:
    seen = world(min_replicas=least)
    seen.last_request, seen.uptime = last, uptime
    assert answer(seen.run(seconds).decide(ready(1))) == expected


def test_every_gateway_has_to_prove_idleness() -> None:
    seen = world()
    for _ in range(65):
        seen.now += 1
        seen.last_request = 500.0
        idle = seen.state({})
        seen.last_request = 3.0
        used = msgspec.structs.replace(seen.state({}), gateway="b")
        reports = [GatewayReport("gw", seen.now, idle), GatewayReport("b", seen.now, used)]
        seen.window.add(merge(reports, seen.now, [KEY])[KEY])
    assert seen.decide(ready(1)).replicas == 1


def test_zero_is_reached_from_any_number_and_a_broken_replica_does_not_prevent_it() -> None:
    seen = world()
    seen.last_request = 500.0
    seen.run(65)
    assert seen.decide(ready(3)).replicas == 0
    assert seen.decide(Replicas(current=1, ready=0, pending=1, changed_at=T0)).replicas == 0
