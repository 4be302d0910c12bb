"""Load of before, from a time series database: believed where it agrees, harmless where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.scaling import Decision, Memory
from headrace.scaling.load import BIN_S, BINS
from headrace.scaling.recall import AGREE_S, MOST_RATE, Point, recall
from headrace.scaling.record import Recorder, replay
from headrace.testing.scaling_world import KEY, T0, Gauge, World, policy, ready

FRESH = [2.0] * 24  # two minutes
NOW = T0 + len(FRESH) * BIN_S


def series(
    rate: Callable[[float], float] = lambda _: 2.0, begin: float = T0 - 1800, end: float = NOW - 30
) -> list[Point]:
    count = int((end - begin) // 15)
    return [Point(end - 15.0 * i, rate(end - 15.0 * i)) for i in reversed(range(count + 1))]


def recalled(points: list[Point], fresh: list[float] | None = None, most: int = BINS) -> tuple[float, ...]:
    return recall(points, FRESH if fresh is None else fresh, T0, BIN_S, most).rates


def test_what_agrees_is_remembered_bin_by_bin() -> None:
    found = recalled(series(lambda at: 2.0 if at > T0 - 600 else 8.0))
    assert len(found) == BINS
    assert found[-100:] == (2.0,) * 100
    assert found[0] == 8.0
    assert recalled(series(), most=7) == (2.0,) * 7


def test_between_two_points_it_rises_evenly() -> None:
    found = recalled(series(lambda at: 2.0 + (T0 - at) / 100 if at < T0 else 2.0))
    assert found[-1] == pytest.approx(2.0 + BIN_S / 200)
    assert list(found) == sorted(found, reverse=True)


def without(points: list[Point], begin: float, end: float) -> list[Point]:
    return [p for p in points if not begin < p.at < end]


def scaled(points: list[Point], factor: float) -> list[Point]:
    return [Point(p.at, p.rate * factor) for p in points]


FULL = series()
LIES: dict[str, tuple[list[Point], int]] = {  # what is told, how many bins of it are believed
    "the truth": (FULL, BINS),
    "nothing": ([], 0),
    "ten times as much": (scaled(FULL, 10), 0),
    "a tenth": (scaled(FULL, 0.1), 0),
    "zero": (scaled(FULL, 0), 0),
    "negative": (scaled(FULL, -1), 0),
    "NaN": ([Point(p.at, math.nan) for p in FULL], 0),
    "infinite": ([Point(p.at, math.inf) for p in FULL], 0),
    "huge": ([Point(p.at, 10 * MOST_RATE) for p in FULL], 0),
    "stale: it ends five minutes ago": (series(end=NOW - 300), 0),
    "of yesterday": ([Point(p.at - 86_400, p.rate) for p in FULL], 0),
    "of tomorrow": ([Point(p.at + 86_400, p.rate) for p in FULL], 0),
    "of no time": ([Point(math.nan, 2.0), *FULL], BINS),
    "a few NaN among it": ([Point(p.at, math.nan) if i % 4 == 0 else p for i, p in enumerate(FULL)], BINS),
    "each twice": (FULL + FULL, BINS),
    "backwards": (FULL[::-1], BINS),
    "a hole of two minutes ten minutes ago": (without(FULL, T0 - 720, T0 - 600), 119),
    "only the last minute": (series(begin=NOW - 60), 0),
    "one point": (FULL[-1:], 0),
}


@pytest.mark.parametrize(("points", "expected"), LIES.values(), ids=LIES)
def test_what_is_believed(points: list[Point], expected: int) -> None:
    found = recall(points, FRESH, T0, BIN_S, BINS)
    assert abs(len(found.rates) - expected) <= 3
    assert all(rate == pytest.approx(2.0) for rate in found.rates)
    assert found.detail


def test_a_minute_of_fresh_data_comes_first() -> None:
    few = [2.0] * round(AGREE_S / BIN_S - 1)
    assert recalled(FULL, few) == ()


wild = st.floats() | st.integers(-10, 10).map(float)


@given(
    points=st.lists(st.builds(Point, wild | st.floats(T0 - 2000, T0 + 200), wild), max_size=30),
    most=st.integers(0, 400),
)
def test_whatever_is_told_the_rates_are_rates_and_no_more_than_asked_for(points: list[Point], most: int) -> None:
    found = recalled(points, most=most)
    assert len(found) <= most
    assert all(0 <= rate <= MOST_RATE for rate in found)


# In decisions: a service that is known after a restart, with what the table tells of before


@dataclass
class Service:
    """A steady service of one replica's load or so, decided each second."""

    on: World = field(default_factory=lambda: World(policy(min_replicas=1), engines=4))
    memory: Memory = field(default_factory=Memory)
    served: int = 0
    cold_s: float = 10.0

    def run(self, seconds: int, rate: int = 4, points: list[Point] | None = None) -> list[Decision]:
        """`rate` requests a second, each of which takes two; what is told comes at the end."""
        found = []
        for _ in range(seconds):
            self.on.now += 1
            self.served += rate
            self.on.engine = {"running": rate // 2}
            self.on.see(Gauge(in_flight=2 * rate, good=self.served, offered=self.served, admitted=self.served))
            found.append(self.decide())
        if points is not None:
            self.on.window.load.recall(points, self.on.now)
        return found

    def decide(self) -> Decision:
        decision = self.on.decide(ready(4, changed_at=T0 - 5000, cold_start_s=self.cold_s), self.memory)
        self.memory = decision.memory
        return decision


def begun(points: Callable[[float], list[Point]] | None, cold_s: float = 10.0) -> Service:
    """Two minutes after a start."""
    service = Service(cold_s=cold_s)
    service.run(120, points=None if points is None else points(T0 + 120))
    return service


def told(points: list[Point]) -> Callable[[float], list[Point]]:
    """The table's series is of 2 requests/s; the service is asked 4."""
    return lambda now: [Point(p.at - NOW + now, 2 * p.rate) for p in points]


@pytest.mark.parametrize("points", [row[0] for row in LIES.values()], ids=LIES)
def test_no_lie_makes_a_decision_worse(points: list[Point]) -> None:
    """Not a replica fewer sooner, and none more: against the same service that nobody tells of before."""
    plain, other = begun(None), begun(told(points))
    assert plain.on.window.load.capacity(4).per_second is not None, "so that forecasts decide"
    alone = plain.run(240)
    assert min(d.replicas for d in alone) == 3, "one is given back"
    for without_it, with_it in zip(alone, other.run(240), strict=True):
        assert with_it.replicas >= without_it.replicas
        assert with_it.replicas <= max(without_it.replicas, 4)


def test_bursts_of_before_keep_what_a_short_memory_would_give_back() -> None:
    def bursts(now: float) -> list[Point]:
        moved = [p.at - NOW + now for p in FULL]
        return [Point(at, 12.0 if (now - at) % 300 > 240 else 4.0) for at in moved]

    plain, other = begun(None, cold_s=120.0), begun(bursts, cold_s=120.0)
    fewest = [min(d.replicas for d in s.run(200)) for s in (plain, other)]
    assert fewest == [3, 4], "nothing that was seen since the start asks for four"
    assert other.on.window.load.recalls


def test_a_recording_with_recalled_load_replays() -> None:
    service = begun(told(FULL))
    lines: list[str] = []
    recorder = Recorder(lines.append)
    recorder.window(KEY, service.on.policy, service.on.window)
    for _ in range(90):
        before = service.memory
        service.on.now += 1
        service.served += 4
        service.on.see(Gauge(in_flight=8, good=service.served, offered=service.served, admitted=service.served))
        assert service.on.window.latest is not None
        recorder.sample(KEY, service.on.window.latest)
        replicas = ready(4, changed_at=T0 - 5000)
        recorder.decision(KEY, service.on.policy, replicas, before, service.decide())
    found = replay(lines)
    assert (found.decisions, found.differences) == (90, ())
    assert '"recalled":[' in lines[0]


def test_a_hole_in_the_samples_forgets_what_was_recalled() -> None:
    service = begun(told(FULL))
    assert service.on.window.load.recalls
    service.on.now += 90
    service.run(1)
    assert not service.on.window.load.recalls


def test_half_an_hour_of_fresh_load_needs_no_other() -> None:
    service = begun(told(FULL))
    load = service.on.window.load
    assert len(load.remembered(service.on.now)) == BINS
    service.run(1800)
    assert not load.recalls
    assert load.remembered(service.on.now) == load.arrivals(service.on.now)
