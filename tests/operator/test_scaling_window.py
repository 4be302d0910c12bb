"""Window, goodput and queue ages: holes, restarts, counters that go back, bounded memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scaling.signals import Goodput, goodput, queue_ages
from headrace.scaling.types import (
    ClassPolicy,
    ClassSample,
    Counters,
    EngineSample,
    Fault,
    FaultKind,
    GatewaySample,
    Policy,
    Sample,
)
from headrace.scaling.window import FLOW_S, MOST_FLOWS, MOST_PEAKS, Flow, Flows, Peaks, Window, WindowState

POLICY = Policy(
    min_replicas=0,
    max_replicas=8,
    max_sequences=2,
    down_after_s=20.0,
    to_zero_after_s=60.0,
    classes=(
        ClassPolicy(name="interactive", priority=100, max_queue_age_s=1.0, ttft_s=2.0, objective_percent=99),
        ClassPolicy(name="batch", priority=10, max_queue_age_s=30.0, ttft_s=60.0, objective_percent=95),
    ),
)
GAP = Fault("gateway b", "report", FaultKind.MISSING)


def sample(at: float, *, good: int = 0, offered: int = 0, started: float = 1.0, **more: Any) -> Sample:
    counters = {"interactive": Counters(good=good, offered=offered)}
    gateway = GatewaySample("gw", 0.1, started, 0.0, counters)
    return Sample(**{"at": at, "gateways": (gateway,), **more})


def window(*samples: Sample) -> Window:
    made = Window(POLICY)
    for each in samples:
        made.add(each)
    return made


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=60), st.integers(0, 60))
def test_the_peak_since_any_moment_is_exact(entries: list[tuple[int, int]], since: int) -> None:
    peaks, ordered = Peaks(), sorted(entries, key=lambda e: e[0])
    for at, value in ordered:
        peaks.add(float(at), value)
    assert peaks.since(since) == max((v for at, v in ordered if at >= since), default=0)


def test_many_falling_values_are_bounded_and_never_underestimated() -> None:
    peaks = Peaks()
    for n in range(5000):
        peaks.add(float(n), 5000 - n)
    assert len(peaks.entries()) == MOST_PEAKS
    assert all(peaks.since(float(n)) >= 5000 - n for n in range(0, 5000, 97))
    assert peaks.since(4900.0) == 100


@pytest.mark.parametrize(
    ("offsets", "gaps", "now", "known"),
    [
        pytest.param([0, 1, 2, 3], [], 3, 3, id="whole"),
        pytest.param([0, 1, 6, 7], [], 7, 7, id="a hole that is allowed"),
        pytest.param([0, 1, 6.5, 7], [], 7, 0.5, id="a hole that is too long"),
        pytest.param([0, 1, 2, 3, 4], [2, 3], 4, 4, id="incomplete ones inside a hole that is allowed"),
        pytest.param(list(range(10)), [2, 3, 4, 5, 6, 7], 9, 1, id="incomplete for too long"),
        pytest.param([0, 1, 2], [2], 2, 2, id="the newest incomplete"),
        pytest.param([0, 1, 2], [], 8, 0, id="no sample for too long"),
        pytest.param([0, 1, 2], [0, 1, 2], 2, 0, id="never complete"),
    ],
)
def test_how_long_it_is_known_without_a_hole(offsets: list[float], gaps: list[float], now: float, known: float) -> None:
    made = window(*(sample(100.0 + t, faults=(GAP,) if t in gaps else ()) for t in offsets))
    assert made.known_for(100.0 + now) == known


def test_a_clock_that_jumps_back_forgets_all() -> None:
    made = window(sample(100.0), sample(160.0))
    made.add(sample(50.0))
    assert made.first_at == 50.0 and made.known_for(50.0) == 0.0 and len(made.recent) == 1
    assert made.known_for(49.0) == 0.0


def test_incomplete_samples_count_as_demand_seen() -> None:
    busy = ClassSample(name="interactive", queued=3, in_flight=4, oldest_age_s=1.0)
    made = window(sample(100.0), sample(101.0, classes=(busy,), faults=(GAP,)), sample(102.0))
    assert made.peak_demand(100.5) == 7 and made.peak_demand(101.5) == 0


def percent(made: Window, now: float) -> int | None:
    return goodput(POLICY, made, now)["interactive"].percent


def test_nothing_offered_is_unknown_and_neither_none_nor_all() -> None:
    made = window(sample(100.0, good=50, offered=50), sample(101.0, good=50, offered=50))
    assert goodput(POLICY, made, 101.0)["interactive"] == Goodput() and percent(made, 101.0) is None
    made.add(sample(102.0, good=50, offered=51))
    assert percent(made, 102.0) == 0
    assert goodput(POLICY, made, 102.0)["batch"].percent is None


def test_the_first_counters_are_a_baseline() -> None:
    made = window(sample(100.0, good=1000, offered=5000), sample(101.0, good=1010, offered=5010))
    assert goodput(POLICY, made, 101.0)["interactive"] == Goodput(good=10, offered=10)


def test_a_restarted_gateway_counts_from_nothing() -> None:
    made = window(
        sample(100.0, good=1000, offered=1000), sample(101.0, good=3, offered=4, started=100.5), sample(102.0)
    )
    assert goodput(POLICY, made, 101.0)["interactive"] == Goodput(good=3, offered=4)


def test_a_gateway_that_joins_counts_all_if_it_was_born_meanwhile() -> None:
    made = window(sample(100.0))
    young = GatewaySample("young", 0.1, 100.5, 0.0, {"interactive": Counters(good=2, offered=2)})
    old = GatewaySample("old", 0.1, 5.0, 0.0, {"interactive": Counters(good=900, offered=900)})
    made.add(msgspec.structs.replace(sample(101.0), gateways=(young, old)))
    assert goodput(POLICY, made, 101.0)["interactive"] == Goodput(good=2, offered=2)


def test_a_gateway_s_gap_is_caught_up() -> None:
    absent = Sample(at=101.0, gateways=(), faults=(GAP,))
    made = window(sample(100.0, good=10, offered=10), absent, sample(102.0, good=15, offered=20))
    assert goodput(POLICY, made, 102.0)["interactive"] == Goodput(good=5, offered=10)


def test_a_counter_that_goes_back_is_a_fault_and_not_negative_goodput() -> None:
    made = window(sample(100.0, good=10, offered=10), sample(101.0, good=4, offered=20))
    assert made.latest is not None
    assert [f.kind for f in made.latest.faults] == [FaultKind.WENT_BACK]
    assert percent(made, 101.0) is None
    made.add(sample(102.0, good=12, offered=22))
    assert made.latest.complete
    assert goodput(POLICY, made, 102.0)["interactive"] == Goodput(good=2, offered=12), "a dip that is over"


def test_counters_that_stay_back_are_believed_after_a_minute() -> None:
    made = window(sample(100.0, good=1000, offered=1000))
    for second in range(1, 63):
        made.add(sample(100.0 + second, good=second, offered=second))
        assert made.latest is not None and not made.latest.complete
    made.add(sample(163.0, good=65, offered=66))
    assert made.latest.complete
    assert goodput(POLICY, made, 163.0)["interactive"] == Goodput(good=3, offered=4)


def test_counters_that_could_not_be_read_once_are_not_counted_from_nothing() -> None:
    made = window(sample(100.0, good=900, offered=900))
    made.add(msgspec.structs.replace(sample(101.0), gateways=(GatewaySample("gw", 0.1, 1.0, 0.0, {}),)))
    made.add(sample(102.0, good=905, offered=910))
    assert goodput(POLICY, made, 102.0)["interactive"] == Goodput(good=5, offered=10)
    made.add(sample(103.0, good=0, offered=0, started=0.0))
    made.add(sample(104.0, good=906, offered=911))
    assert goodput(POLICY, made, 104.0)["interactive"] == Goodput(good=6, offered=11)


def test_goodput_forgets_what_is_older_than_its_window() -> None:
    made = window(sample(100.0), sample(101.0, good=0, offered=10), sample(150.0, good=10, offered=20))
    assert percent(made, 150.0) == 50 and percent(made, 162.0) == 100 and percent(made, 211.0) is None
    assert goodput(POLICY, made, 211.0, span_s=300.0)["interactive"].percent == 50


def engine(wait: float | None) -> EngineSample:
    return EngineSample(pod="p", age_s=0.1, running=1, waiting=0 if wait is None else 1, oldest_waiting_s=wait)


@pytest.mark.parametrize(
    ("classes", "wait", "expected"),
    [
        pytest.param((), None, {}, id="nothing waits"),
        pytest.param((("interactive", 0.4, 0),), None, {"interactive": 0.4}, id="the gateway's own"),
        pytest.param((("interactive", None, 2), ("batch", None, 1)), 3.0, {"batch": 3.0}, id="lowest in flight"),
        pytest.param(
            (("interactive", None, 2), ("batch", None, 0)), 3.0, {"interactive": 3.0}, id="the only in flight"
        ),
        pytest.param((("interactive", 5.0, 2),), 3.0, {"interactive": 5.0}, id="the larger of the two"),
        pytest.param((), 3.0, {"batch": 3.0}, id="past the gateways"),
        pytest.param((("unlisted", 9.0, 2),), None, {}, id="a class that the objective no longer has"),
    ],
)
def test_queue_age_joins_gateways_and_engines(
    classes: tuple[tuple[str, float | None, int], ...], wait: float | None, expected: dict[str, float]
) -> None:
    seen = tuple(
        ClassSample(name=name, queued=0 if age is None else 1, oldest_age_s=age, in_flight=flying)
        for name, age, flying in classes
    )
    assert queue_ages(POLICY, sample(100.0, classes=seen, engines=(engine(wait),))) == expected


def test_memory_is_bounded_over_days() -> None:
    made = Window(POLICY)
    for n in range(40_000):
        busy = ClassSample(name="interactive", in_flight=n % 50)
        gateway = GatewaySample(f"gw-{n // 20}", 0.1, float(n // 20), 0.0, {"interactive": Counters(good=n, offered=n)})
        made.add(Sample(at=1000.0 + 5 * n, classes=(busy,), gateways=(gateway,)))
    state = made.state()
    assert len(state.recent) <= 31 and len(state.flows) <= 600 and len(state.baselines) <= 256
    assert len(state.demand) <= MOST_PEAKS


def test_a_window_is_stored_and_read_back() -> None:
    busy = ClassSample(name="interactive", queued=1, in_flight=4, oldest_age_s=0.25)
    made = window(sample(100.0, good=1, offered=1), sample(101.25, good=3, offered=4, classes=(busy,), faults=(GAP,)))
    stored = msgspec.json.decode(msgspec.json.encode(made.state()), type=WindowState)
    assert stored == made.state()
    again = Window(POLICY, stored)
    for each in (made, again):
        each.add(sample(102.5, good=5, offered=9))
    assert again.state() == made.state()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 40), st.sampled_from("ab"), st.integers(0, 9)), max_size=60), st.floats(0, 400)
)
def test_flows_since_a_moment_are_the_sum_of_those_after_it(steps: list[tuple[float, str, int]], span: float) -> None:
    flows, plain, at = Flows(), [], 0.0
    for passed, name, good in steps:
        at += passed
        plain.append(Flow(at, {name: Counters(good=good, offered=good + 1)}))
        flows.add(plain[-1])
    kept = [f for f in plain if f.at >= at - FLOW_S]
    assert list(flows) == kept
    for source in (flows, Flows(kept)):
        found = source.since(at - span)
        for name in "ab":
            mine = [f.classes[name] for f in kept if f.at > at - span and name in f.classes]
            assert found.get(name, Counters()).good == sum(c.good for c in mine)
            assert found.get(name, Counters()).offered == sum(c.offered for c in mine)


def test_flows_are_bounded_and_still_right() -> None:
    flows = Flows()
    for n in range(5 * MOST_FLOWS):
        flows.add(Flow(n * 0.01, {"a": Counters(good=1)}))
    assert len(list(flows)) == MOST_FLOWS
    assert flows.since(-1.0)["a"].good == MOST_FLOWS
    assert flows.since((5 * MOST_FLOWS - 11) * 0.01)["a"].good == 10
