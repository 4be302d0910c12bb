"""decide: the properties that hold in all situations, and a generated matrix of faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scaling import Memory, Reason, Replicas
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import Refused
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

# ---- properties -----------------------------------------------------------------------------------------------------

COUNT = st.one_of(st.integers(0, 60), st.sampled_from([math.nan, -3, 1e30, None]))
GAUGE = st.builds(
    Gauge,
    queued=COUNT,
    age=st.one_of(st.none(), st.floats(0, 40), st.sampled_from([math.nan, -1.0, 1e30])),
    in_flight=COUNT,
    good=COUNT,
    offered=COUNT,
)
REPLICAS = st.builds(
    Replicas,
    current=st.integers(0, 12),
    ready=st.integers(0, 12),
    pending=st.integers(0, 4),
    unschedulable=st.integers(0, 4),
    changed_at=st.one_of(st.none(), st.floats(T0 - 100, T0 + 200), st.sampled_from([math.nan, 0.0, -1.0, 1e300])),
    cold_start_s=st.one_of(st.none(), st.floats(0, 100), st.sampled_from([math.nan, -1.0, math.inf, 1e300])),
)
MEMORY = st.builds(
    Memory,
    unschedulable_since=st.one_of(st.none(), st.floats(T0 - 400, T0 + 100)),
    refused=st.one_of(st.none(), st.builds(Refused, ceiling=st.integers(0, 5), until=st.floats(T0 - 10, T0 + 500))),
    up_at=st.one_of(st.none(), st.floats(T0 - 50, T0 + 100)),
    down_at=st.one_of(st.none(), st.floats(T0 - 50, T0 + 100)),
)
HISTORY = st.lists(st.tuples(GAUGE, st.integers(1, 25), st.booleans()), max_size=5)
BOUNDS = st.tuples(st.integers(0, 4), st.integers(1, 9)).map(lambda b: (b[0], max(b)))


def replayed(history: list[tuple[Gauge, int, bool]], bounds: tuple[int, int], last: float | None) -> World:
    seen = world(min_replicas=bounds[0], max_replicas=bounds[1])
    seen.last_request = last
    for gauge, seconds, answers in history:
        for _ in range(seconds):
            seen.now += 1
            seen.see(gauge, answers=answers)
    return seen


LAST = st.sampled_from([None, 0.0, 30.0, 500.0])


@settings(max_examples=400, deadline=None)
@given(HISTORY, BOUNDS, LAST, REPLICAS, MEMORY)
def test_in_every_situation(
    history: list[tuple[Gauge, int, bool]],
    bounds: tuple[int, int],
    last: float | None,
    replicas: Replicas,
    memory: Memory,
) -> None:
    seen = replayed(history, bounds, last)
    d = seen.decide(replicas, memory)
    assert bounds[0] <= d.replicas <= bounds[1]
    assert d.winner in {c.name for c in d.candidates}
    assert d.replicas <= max(2 * replicas.current, 1, bounds[0])
    latest = seen.window.latest
    blind = latest is None or not latest.complete
    if blind:
        assert d.replicas >= min(replicas.current, bounds[1])
    if d.replicas == 0 and replicas.current > 0:
        assert d.reason in (Reason.TO_ZERO, Reason.UNSCHEDULABLE)
    if d.replicas < replicas.current and d.reason is Reason.UNDERUSED:
        assert d.replicas == replicas.current - 1 and latest is not None and latest.queued == 0
    assert str(d.replicas) in d.message and d.reason.value in d.message
    assert d == seen.decide(replicas, memory)
    assert len(msgspec.json.encode(d.as_status())) < 6000


@settings(max_examples=300, deadline=None)
@given(HISTORY, BOUNDS, st.integers(1, 40), st.integers(0, 40), st.floats(0, 40), st.floats(0, 40), REPLICAS, MEMORY)
def test_an_older_queue_never_asks_for_fewer(
    history: list[tuple[Gauge, int, bool]],
    bounds: tuple[int, int],
    queued: int,
    in_flight: int,
    first: float,
    second: float,
    replicas: Replicas,
    memory: Memory,
) -> None:
    answers = []
    for age in sorted((first, second)):
        seen = replayed(history, bounds, None)
        seen.run(1, Gauge(queued, age, in_flight))
        answers.append(seen.decide(replicas, memory).replicas)
    assert answers[0] <= answers[1]


# ---- the fault matrix -----------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {"missing": None, "NaN": math.nan, "zero": 0, "huge": 1e300, "negative": -5}


def _set(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: setattr(g, name, v)


def _engine(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: w.engine.__setitem__(name, v)


def _world(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: setattr(w, name, v)


INPUTS: dict[str, Callable[[World, Any, Gauge], None]] = {
    **{name: _set(name) for name in ("queued", "age", "in_flight", "good", "offered", "admitted", "queued_tokens")},
    **{name: _set(name) for name in ("answered", "prompt_tokens", "output_tokens")},
    **{f"engine.{name}": _engine(name) for name in ("running", "waiting", "oldest_waiting_s", "age_s")},
    "uptime": _world("uptime"),
    "last_request": _world("last_request"),
}
# Three replicas are needed: 7 in flight, or 1 queued, or 7 running. Only a plain, believable zero may say otherwise.
NEEDED = {
    "by gateway": (Gauge(in_flight=7, good=700, offered=700), {}),
    "by queue": (Gauge(queued=1, age=0.4, in_flight=1, good=700, offered=700), {}),
    "by engine": (
        Gauge(in_flight=6, good=700, offered=700),
        {"running": 7, "waiting": 1, "oldest_waiting_s": 0.4},
    ),
}


@pytest.mark.parametrize("kind", [*VALUES, "stale", "duplicated"])
@pytest.mark.parametrize("name", list(INPUTS))
@pytest.mark.parametrize("need", list(NEEDED))
def test_no_fault_of_an_input_scales_down_what_is_needed(need: str, name: str, kind: str) -> None:
    gauge, engine = NEEDED[need]
    seen = world()
    seen.engine, seen.last_request = dict(engine), 0.5
    seen.run(60, gauge)
    broken = msgspec.json.decode(msgspec.json.encode(gauge.__dict__))
    faulty = Gauge(**broken)
    reasons = set()
    for _ in range(10):
        seen.now += 1
        if kind not in ("stale", "duplicated"):
            INPUTS[name](seen, VALUES[kind], faulty)
        state = seen.state({"interactive": faulty, "batch": Gauge()})
        report = GatewayReport("gw", seen.now - (60 if kind == "stale" else 0), state)
        copies = [report] * (3 if kind == "duplicated" else 1)
        seen.window.add(merge(copies, seen.now, [KEY])[KEY])
        d = seen.decide(ready(3))
        empty_now = (need, name, kind) == ("by queue", "queued", "zero")  # the queue has simply been served
        assert d.replicas >= 3 or empty_now, d.message
        reasons.add(d.reason)
    believable = kind in ("zero", "duplicated") or (name, kind) in {
        ("last_request", "missing"),
        ("age", "missing"),
        ("engine.oldest_waiting_s", "missing"),
        ("uptime", "zero"),
    }
    idle_age = name in ("age", "engine.oldest_waiting_s") and reasons == {Reason.STEADY}
    if not believable and not idle_age:
        assert reasons <= {Reason.INCOMPLETE, Reason.STALE, Reason.NO_DATA}, (name, kind, reasons)


def learned(seconds: int = 240) -> tuple[World, Gauge]:
    """Three replicas of four slots that are known to take 4 requests/s each, under 10 requests/s."""
    seen = world(min_replicas=1)
    seen.engines, seen.last_request = 3, 0.5
    count = 0
    gauge = Gauge()
    for _ in range(seconds):
        count += 10
        gauge = Gauge(in_flight=10, good=count, offered=count, admitted=count)
        seen.run(1, gauge)
    return seen, gauge


def test_the_world_of_known_capacity_is_one() -> None:
    seen, _ = learned()
    d = seen.decide(ready(3))
    assert answer(d) == (3, Reason.STEADY)
    assert d.inputs["capacityPerReplica"] == pytest.approx(4.0, rel=0.05)
    assert next(c for c in d.candidates if c.name == "forecast").replicas == 3


@pytest.mark.parametrize("kind", [*VALUES, "stale", "duplicated"])
@pytest.mark.parametrize("name", list(INPUTS))
def test_no_fault_of_an_input_scales_down_where_the_capacity_is_known(name: str, kind: str) -> None:
    """Each input is broken for half a minute under a load that goes on; then all is well again."""
    seen, gauge = learned()
    memory, reasons, counts = Memory(), set(), gauge.good
    for second in range(60):
        seen.now += 1
        counts += 10
        faulty = Gauge(in_flight=10, good=counts, offered=counts, admitted=counts)
        broken = second < 30
        if broken and kind in VALUES:
            INPUTS[name](seen, VALUES[kind], faulty)
        elif not broken:
            seen.engine, seen.uptime, seen.last_request = {}, 100_000.0, 0.5
        state = seen.state({"interactive": faulty, "batch": Gauge()})
        report = GatewayReport("gw", seen.now - (60 if broken and kind == "stale" else 0), state)
        seen.window.add(merge([report] * (3 if kind == "duplicated" else 1), seen.now, [KEY])[KEY])
        d = seen.decide(ready(3), memory)
        memory = d.memory
        assert d.replicas == 3, d.message
        assert memory.price < 300.0 and math.isfinite(memory.price)
        reasons.add(d.reason)
    unusable = {Reason.INCOMPLETE, Reason.STALE, Reason.NO_DATA, Reason.WARMING_UP, Reason.STEADY, Reason.COOLDOWN}
    assert reasons <= unusable, (name, kind, reasons)


@pytest.mark.parametrize(
    ("name", "value"),
    list(itertools.product(("cold_start_s", "changed_at"), (math.nan, math.inf, -1.0, 1e300)))
    + list(itertools.product(("ready", "pending", "unschedulable", "terminating"), (-1, 10**9))),
)
def test_no_fault_of_a_replica_s_figure_scales_down(name: str, value: Any) -> None:
    seen = world()
    seen.last_request = 500.0
    seen.run(100)
    d = seen.decide(ready(3, **{name: value}))
    assert answer(d) == (3, Reason.INCOMPLETE) and name.removesuffix("_s").replace("_", " ")[:5] in d.message


def test_traffic_that_falls_to_zero_is_no_missing_data() -> None:
    """Nothing offered makes goodput unknown, and every latency undefined; fewer replicas follow all the same."""
    seen = world(min_replicas=1)
    for n in range(70):
        seen.run(1, served(10 * n, 10 * n, 7))
    seen.run(70, served(690, 690, 0))
    d = seen.decide(ready(3))
    assert answer(d) == (2, Reason.UNDERUSED) and d.inputs["interactive.goodputPercent"] is None
