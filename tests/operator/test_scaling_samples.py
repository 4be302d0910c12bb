"""merge: sums, ages, gaps; what cannot be used is a fault and never a number."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import Counters, FaultKind, Sample
from headrace_wire.protocol import EngineState, ModelInfo

NOW = 1_700_000_000.0
KEY = ("ns", "chat")


def classes(**more: Any) -> list[ClassState]:
    return [ClassState(**{"name": "default", "outcomes": {"good": 5, "shed": 1}, "offered": 6, "admitted": 7, **more})]


def engine(pod: str = "p0", age: float | None = 0.3, **state: Any) -> EngineReport:
    return EngineReport(pod=pod, address="1:8000", age_s=age, state=EngineState(model=ModelInfo(name="m"), **state))


def report(name: str = "gw", *, age: float = 0.1, **model: Any) -> GatewayReport:
    uptime = model.pop("uptime", 1000.0)
    known = ModelState(**{"namespace": "ns", "name": "chat", "classes": classes(), "engines": [engine()], **model})
    state = GatewayState(gateway=name, started_at=NOW - 1000, uptime_s=uptime, models=[known])
    return GatewayReport(name, NOW - age, state)


def one(*reports: GatewayReport) -> Sample:
    return merge(reports, NOW, [KEY])[KEY]


def kinds(sample: Sample) -> set[tuple[str, str, FaultKind]]:
    return {(f.source, f.input, f.kind) for f in sample.faults}


def test_two_gateways_are_summed_and_their_ages_kept_apart() -> None:
    first = report("a", age=0.5, classes=classes(queued=2, queued_tokens=30, oldest_age_s=1.5, in_flight=3))
    second = report("b", age=1.5, classes=classes(queued=1, queued_tokens=5, oldest_age_s=0.2, in_flight=4))
    sample = one(first, second)
    seen = sample.classes[0]
    assert (seen.queued, seen.queued_tokens, seen.oldest_age_s, seen.in_flight) == (3, 35, 1.5, 7)
    assert [(g.name, round(g.age_s, 3)) for g in sample.gateways] == [("a", 0.5), ("b", 1.5)]
    assert sample.gateways[0].counters == {"default": Counters(good=5, offered=6, shed=1, ended=6, admitted=7)}
    assert sample.complete and sample.in_flight == 7 and sample.queued == 3


def test_a_gateway_that_does_not_answer_is_named_and_the_others_count() -> None:
    sample = one(report("a", classes=classes(queued=2, oldest_age_s=1.0)), GatewayReport("b", NOW, None))
    assert sample.queued == 2 and not sample.complete
    assert kinds(sample) == {("gateway b", "report", FaultKind.MISSING)}
    assert "gateway b" in str(sample.faults[0]) and "did not answer" in str(sample.faults[0])


@pytest.mark.parametrize(
    ("reports", "fault"),
    [
        pytest.param([], ("gateways", "report", FaultKind.MISSING), id="no gateway at all"),
        pytest.param([report(age=5.1)], ("gateway gw", "report", FaultKind.STALE), id="stale"),
        pytest.param([report(age=-10)], ("gateway gw", "report", FaultKind.STALE), id="from the future"),
        pytest.param([report(age=math.nan)], ("gateway gw", "report", FaultKind.STALE), id="no time"),
        pytest.param([report(name="x", namespace="other")], ("gateway x", "report", FaultKind.MISSING), id="not known"),
    ],
)
def test_no_usable_report(reports: list[GatewayReport], fault: tuple[str, str, FaultKind]) -> None:
    sample = one(*reports)
    assert fault in kinds(sample) and not sample.complete and sample.gateways == ()


def test_models_that_no_gateway_mentions_get_a_sample_and_those_it_mentions_need_no_naming() -> None:
    merged = merge([report()], NOW, [("ns", "new")])
    assert set(merged) == {KEY, ("ns", "new")}
    assert merged[KEY].complete and not merged[("ns", "new")].complete


def test_of_two_reports_of_one_gateway_the_later_counts() -> None:
    old = report(age=2.0, classes=classes(in_flight=9))
    new = report(age=0.2, classes=classes(in_flight=1))
    assert one(old, new).in_flight == one(new, old).in_flight == 1


def test_the_freshest_report_of_an_engine_counts() -> None:
    first = report("a", engines=[engine(age=3.0, running=1), engine("p1", age=None)])
    second = report("b", engines=[engine(age=0.1, running=7), engine("p1", age=1.0, waiting=2, oldest_waiting_s=4.0)])
    for sample in (one(first, second), one(second, first)):
        assert [(e.pod, e.running) for e in sample.engines] == [("p0", 7), ("p1", 0)]
        assert sample.complete and sample.engine_wait_s == 4.0 and sample.waiting == 2


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        pytest.param(engine(age=None), FaultKind.MISSING, id="never reported"),
        pytest.param(engine(age=5.5), FaultKind.STALE, id="stale"),
        pytest.param(engine(age=math.nan), FaultKind.STALE, id="no time"),
        pytest.param(EngineReport(pod="p0", address="x", age_s=0.1), FaultKind.MISSING, id="no state"),
    ],
)
def test_an_engine_without_a_fresh_report_is_named(made: EngineReport, kind: FaultKind) -> None:
    sample = one(report(engines=[made]))
    assert kinds(sample) == {("engine p0", "report", kind)} and sample.engines == ()


BAD = [
    pytest.param(math.nan, FaultKind.NAN, id="NaN"),
    pytest.param(-1, FaultKind.NEGATIVE, id="negative"),
    pytest.param(1e30, FaultKind.HUGE, id="huge"),
    pytest.param(None, FaultKind.MISSING, id="missing"),
]


@pytest.mark.parametrize(("value", "kind"), BAD)
@pytest.mark.parametrize("name", ["queued", "queued_tokens", "in_flight", "offered", "admitted", "offered_tokens"])
def test_a_class_s_bad_number_is_a_fault(name: str, value: Any, kind: FaultKind) -> None:
    sample = one(report(classes=classes(**{name: value})))
    assert {k for _, _, k in kinds(sample)} == {kind}
    assert sample.queued == sample.in_flight == 0
    counter = name in ("offered", "admitted", "offered_tokens")
    assert ("default" in sample.gateways[0].counters) is not counter


@pytest.mark.parametrize(("value", "kind"), BAD)
def test_a_queue_without_a_usable_age_is_a_fault(value: Any, kind: FaultKind) -> None:
    sample = one(report(classes=classes(queued=1, oldest_age_s=value)))
    assert {k for _, _, k in kinds(sample)} == {kind}
    assert sample.classes[0].oldest_age_s is None and sample.queued == 1
    assert one(report(classes=classes(queued=0, oldest_age_s=value))).complete  # an empty queue has no age


@pytest.mark.parametrize(("value", "kind"), BAD)
@pytest.mark.parametrize("name", ["running", "waiting", "total", "free", "evictable", "preemptions"])
def test_an_engine_s_bad_number_is_a_fault(name: str, value: Any, kind: FaultKind) -> None:
    sample = one(report(engines=[engine(**{name: value})]))
    assert {k for _, _, k in kinds(sample)} == {kind}


@pytest.mark.parametrize(
    ("uptime", "last", "idle", "complete"),
    [
        pytest.param(1000.0, None, 1000.0, True, id="no request since its start"),
        pytest.param(1000.0, 30.0, 30.0, True, id="the last one 30 s ago"),
        pytest.param(1000.0, 0.0, 0.0, True, id="zero is a number"),
        pytest.param(math.nan, 30.0, 0.0, False, id="unknown uptime"),
        pytest.param(-5.0, None, 0.0, False, id="negative uptime"),
        pytest.param(1000.0, math.nan, 0.0, False, id="NaN"),
        pytest.param(1000.0, 2000.0, 0.0, False, id="longer ago than it lives"),
    ],
)
def test_idleness_is_proved_by_each_gateway(uptime: float, last: float | None, idle: float, complete: bool) -> None:
    sample = one(report(uptime=uptime, last_request_age_s=last))
    assert (sample.gateways[0].idle_s, sample.complete) == (idle, complete)


def test_an_engine_that_knows_of_more_is_believed() -> None:
    assert one(report(engines=[engine(running=5, waiting=1, oldest_waiting_s=0.1)])).in_flight == 6


def test_the_state_as_it_comes_over_the_wire_is_merged() -> None:
    made = report(classes=classes(queued=2, oldest_age_s=1.0))
    assert made.state is not None
    wire = msgspec.json.decode(msgspec.json.encode(made.state), type=GatewayState)
    assert one(GatewayReport("gw", made.received_at, wire)) == one(made)
