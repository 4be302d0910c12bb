"""The slow loop: the history of load, what a replica takes, and the choice among forecasts."""

from __future__ import annotations

import itertools
import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scaling import Decision, Memory, Policy, Reason, Replicas, decide
from headrace.scaling.budget import LEAST_PRICE
from headrace.scaling.capacity import Block, Capacity, capacity
from headrace.scaling.load import BIN_S, BINS, HOLE_S, Load, LoadState, Seen
from headrace.scaling.record import Ring, replay
from headrace.scaling.rehearsal import FIRST_PRICE, Choice, Plant, Setting, choose, expected_rate, replicas
from headrace.scaling.types import ClassPolicy, ClassSample, Counters, EngineSample, GatewaySample, Sample
from headrace.scaling.window import Window

T0 = 1_700_000_000.0
SLOTS = 8
ALONE_S, SHARE_S = 0.5, 0.0625  # of a request: a full replica takes 8 / (0.5 + 8 / 16) = 8 requests/s
TAKES = SLOTS / (ALONE_S + SHARE_S * SLOTS)
POLICY = Policy(
    min_replicas=1,
    max_replicas=50,
    max_sequences=SLOTS,
    down_after_s=300.0,
    to_zero_after_s=600.0,
    classes=(ClassPolicy(name="default", max_queue_age_s=1.0, ttft_s=2.0, objective_percent=95),),
)


def seen(at: float, arrived: float) -> Seen:
    return Seen(at, arrived, arrived, 1, 4, 0)


def block(n: float, *, queued_s: float = 0.0, scale: float = 100.0) -> Block:
    """Half a minute of `scale` replicas with n requests each, as the law of the batch has it."""
    rate = n / (ALONE_S + SHARE_S * n)
    return Block(T0, 30 * scale, 30 * scale * n, 30 * scale * rate, queued_s, 30.0)


# Load


def test_arrivals_are_spread_over_the_time_in_which_they_came() -> None:
    load = Load()
    for second in range(0, 61, 3):
        load.add(seen(T0 + second, 30.0))
    assert load.arrivals(T0 + 60) == pytest.approx([10.0] * 12)
    assert len(load.arrivals(T0 + 59.9)) == 11, "only whole bins"


def test_what_an_incomplete_sample_knows_is_spread_over_the_time_until_a_whole_one() -> None:
    load = Load()
    load.add(seen(T0, 0.0))
    load.add(seen(T0 + 5, 50.0))
    for _ in range(5):
        load.carry(30.0, 30.0)
    restored = Load(msgspec.json.decode(msgspec.json.encode(load.state()), type=LoadState))
    for each in (load, restored):
        each.add(seen(T0 + 25, 50.0))
        assert each.arrivals(T0 + 25) == pytest.approx([10.0] * 5)


def test_a_short_gap_is_no_burst_and_a_long_one_begins_anew() -> None:
    load = Load()
    for at, arrived in ((0, 0.0), (10, 100.0), (40, 300.0), (50, 100.0)):
        load.add(seen(T0 + at, arrived))
    assert load.arrivals(T0 + 50) == pytest.approx([10.0] * 10)
    load.add(seen(T0 + 51 + HOLE_S, 1000.0))
    assert load.arrivals(T0 + 51 + HOLE_S) == []


@given(st.lists(st.tuples(st.floats(0.01, 90), st.floats(0, 1e6)), max_size=80))
@settings(deadline=None)
def test_load_is_bounded_finite_and_restored_from_its_state(steps: list[tuple[float, float]]) -> None:
    load, now = Load(), T0
    for passed, arrived in steps:
        now += passed
        load.add(seen(now, arrived))
        load = Load(msgspec.json.decode(msgspec.json.encode(load.state()), type=LoadState))
    arrivals = load.arrivals(now)
    assert len(arrivals) <= BINS + 1
    assert all(math.isfinite(x) and x >= 0 for x in arrivals)
    assert sum(arrivals) * BIN_S <= sum(a for _, a in steps) * (1 + 1e-9)


# Capacity


@pytest.mark.parametrize(
    ("blocks", "known"),
    [
        pytest.param([], False, id="nothing seen"),
        pytest.param([block(6.0)], False, id="too short"),
        pytest.param([block(6.0, scale=0.05)] * 10, False, id="too few requests"),
        pytest.param([block(2.0), block(3.0)] * 5, False, id="too idle"),
        pytest.param([block(4.0), block(7.0)] * 5, True, id="busy"),
        pytest.param([block(8.0, queued_s=30.0)] * 10, True, id="full"),
    ],
)
def test_capacity_is_what_a_full_replica_takes(blocks: list[Block], known: bool) -> None:
    found = capacity(blocks, SLOTS)
    assert found.per_second == (pytest.approx(TAKES, rel=0.02) if known else None)
    assert known or found.detail


def test_a_replica_that_other_bounds_fill_takes_what_it_takes() -> None:
    """Requests wait although half of the slots are free: pages or prefill bind."""
    found = capacity([block(4.0, queued_s=30.0)] * 10, SLOTS)
    assert found.per_second == pytest.approx(4 / (ALONE_S + SHARE_S * 4), rel=0.02)


@given(st.lists(st.floats(0.5, 8), min_size=5, max_size=30))
@settings(deadline=None)
def test_capacity_is_positive_and_below_free_company(ns: list[float]) -> None:
    found = capacity([block(n) for n in ns], SLOTS)
    assert found.per_second is None or 0 < found.per_second <= SLOTS / ALONE_S


def test_what_was_known_stays_known_when_a_service_becomes_quiet() -> None:
    load, at = Load(), T0
    for n, rate, blocks in ((6, 6 / (ALONE_S + SHARE_S * 6), 10), (0, 0.0, 70)):
        for _ in range(30 * blocks):
            at += 1
            load.add(Seen(at, 100 * rate, 100 * rate, 100, 100 * n, 0))
            known = load.capacity(SLOTS)  # as each decision asks
    assert known.per_second is not None and "last busy" in known.detail
    assert load.capacity(SLOTS + 1).per_second is None, "of replicas with other slots"
    stored = Load(msgspec.json.decode(msgspec.json.encode(load.state()), type=LoadState))
    assert stored.capacity(SLOTS) == known


def test_waiting_all_the_time_shows_what_a_replica_takes() -> None:
    """Bursts hide the law of the batch from means over half a minute; what begins while something waits does not."""
    load, at = Load(), T0
    for second in range(1800):
        at += 1
        busy = second % 30 < 6
        load.add(Seen(at, 80.0 if busy else 0.0, 10 * TAKES if busy else 1.0, 10, 80 if busy else 1, 50 if busy else 0))
    found = load.capacity(SLOTS).per_second
    assert found is None or found == pytest.approx(TAKES, rel=0.15)
    blocks = load.state().blocks
    assert blocks[-1].full_admitted / blocks[-1].full_replica_s == pytest.approx(TAKES, rel=0.01)


# Rehearsal


def flat(rate: float, seconds: float = 1800.0) -> list[float]:
    return [rate] * round(seconds / BIN_S)


def waves(low: float, high: float, period_s: float) -> list[float]:
    half = round(period_s / 2 / BIN_S)
    return ([low] * half + [high] * half) * (round(1800 / BIN_S) // (2 * half))


def plant(cold_start_s: float = 60.0) -> Plant:
    return Plant(TAKES, cold_start_s, 2.0, 0.05)


def chosen(arrivals: list[float], cold_start_s: float = 60.0, price: float = FIRST_PRICE) -> Setting:
    return choose(arrivals, plant(cold_start_s), Choice(), price).setting


@pytest.mark.parametrize("need", [2.9, 3.0, 5.5])
def test_a_steady_load_gets_what_it_takes(need: float) -> None:
    arrivals = flat(need * TAKES)
    setting = chosen(arrivals)
    wanted = replicas(expected_rate(arrivals, setting, 60.0), setting, TAKES)
    assert wanted == math.ceil(need - 1e-9)


def test_waves_shorter_than_a_cold_start_are_sized_for_their_peak() -> None:
    arrivals = waves(2 * TAKES, 6 * TAKES, 60.0)
    setting = chosen(arrivals, cold_start_s=120.0)
    held = [replicas(expected_rate(arrivals[:n], setting, 120.0), setting, TAKES) for n in range(61, len(arrivals) + 1)]
    assert max(held) - min(held) <= 1, "no replica is moved within the waves"
    assert min(held) >= 5


def test_without_history_the_present_way_stays() -> None:
    assert choose(flat(30.0, 180.0), plant(), Choice(Setting(1.2)), 5.0) == Choice(Setting(1.2))


@given(st.lists(st.floats(0, 1e5), min_size=60, max_size=90), st.floats(1, 600))
@settings(max_examples=20, deadline=None)
def test_a_choice_is_the_same_again_and_finite(arrivals: list[float], cold: float) -> None:
    found = choose(arrivals, plant(cold), Choice(), 3.0)
    assert found == choose(list(arrivals), plant(cold), Choice(), 3.0)
    rate = expected_rate(arrivals, found.setting, cold)
    assert math.isfinite(rate) and rate >= 0 and (found.late is None or found.late >= 0)


# The whole decision


class Fleet:
    """Replicas as above under a load, second by second: what begins, waits, is late, and what is decided."""

    def __init__(self, start: int, cold_start_s: float = 30.0):
        self.window, self.memory, self.ring = Window(POLICY), Memory(), Ring(decisions=2000)
        self.current, self.cold = start, cold_start_s
        self.coming: list[float] = []
        self.now, self.changed, self.queue, self.counters = T0, T0 - 3600, 0.0, Counters()
        self.history: list[int] = []
        self.late, self.late_above = 0.0, 0.0  # share that ends late, of batches larger than that
        self.stuck = False  # new replicas never become ready
        self.last: Decision | None = None

    def run(self, seconds: int, load: float) -> None:
        for _ in range(seconds):
            self._second(load)
            self.history.append(self.current)

    def _second(self, load: float) -> None:
        self.now += 1
        ready = self.current - sum(at > self.now for at in self.coming)
        self.queue += load
        begun = min(self.queue, ready * TAKES)
        self.queue -= begun
        shed = max(0.0, self.queue - ready * TAKES)
        self.queue -= shed
        each = begun / ready * ALONE_S / (1 - SHARE_S * begun / ready)
        good = begun * (1 - self.late) if each > self.late_above else begun
        old = self.counters
        self.counters = Counters(
            good=old.good + round(good), offered=old.offered + round(begun + shed), shed=old.shed + round(shed),
            ended=old.ended + round(begun + shed), admitted=old.admitted + round(begun),
        )  # fmt: skip
        self._decide(ready, round(each * ready))

    def _decide(self, ready: int, in_flight: int) -> None:
        waiting = round(self.queue)
        sample = Sample(
            at=self.now,
            classes=(
                ClassSample(name="default", queued=waiting, in_flight=in_flight, oldest_age_s=1.2 if waiting else None),
            ),
            gateways=(GatewaySample("g", 0.0, T0 - 3600, 0.0, {"default": self.counters}),),
            engines=tuple(EngineSample(pod=f"p{i}", age_s=0.0, running=0, waiting=0) for i in range(ready)),
        )
        replicas = Replicas(
            current=self.current, ready=ready, pending=self.current - ready, changed_at=self.changed,
            cold_start_s=self.cold,
        )  # fmt: skip
        key = ("ns", "m")
        self.ring.before(key, POLICY, self.window)
        self.window.add(sample)
        self.ring.sample(key, sample)
        self.last = decide(POLICY, self.window, replicas, self.now, self.memory)
        self.ring.decision(key, POLICY, replicas, self.memory, self.last)
        self.memory = self.last.memory
        delta = self.last.replicas - self.current
        if delta:
            self.changed = self.now
            self.coming += [math.inf if self.stuck else self.now + self.cold] * max(0, delta)
            self.coming = self.coming[: len(self.coming) + min(0, delta)] if delta < 0 else self.coming
            self.current += delta


@pytest.mark.parametrize("start", [3, 6])
def test_a_steady_load_settles_at_what_it_takes(start: int) -> None:
    fleet = Fleet(start)
    fleet.run(900, 2.7 * TAKES)
    assert set(fleet.history[-300:]) == {3}
    assert max(fleet.history) == start


def test_a_step_is_followed_without_doubling_for_ever_and_the_record_replays() -> None:
    fleet = Fleet(3)
    fleet.run(400, 2.6 * TAKES)
    fleet.run(600, 4.6 * TAKES)
    assert fleet.history[-1] == 5
    assert max(fleet.history) <= 7
    assert replay(fleet.ring.lines()).differences == ()


@pytest.mark.parametrize("periods", [0.5, 1.0, 2.0, 4.0])
def test_square_waves_are_not_amplified(periods: float) -> None:
    fleet, half = Fleet(6), round(periods * 30.0 / 2)
    for _ in range(1500 // (2 * half)):
        fleet.run(half, 2.5 * TAKES)
        fleet.run(half, 5.5 * TAKES)
    signs = [b - a for a, b in itertools.pairwise(fleet.history) if a != b]
    turns = sum((a > 0) != (b > 0) for a, b in itertools.pairwise(signs))
    assert turns <= 2 * (1500 // (2 * half))
    assert max(fleet.history) <= 9


def test_the_forecast_grows_the_fleet_before_requests_wait() -> None:
    fleet = Fleet(4)
    for need in (2.0, 2.4, 2.8, 3.2, 3.6, 3.9):
        fleet.run(120, need * TAKES)
    last = fleet.last
    assert last is not None
    found = {c.name: c for c in last.candidates}
    assert found["forecast"].replicas is not None and found["forecast"].replicas >= 4
    assert "requests/s" in found["forecast"].detail and "a replica takes" in found["forecast"].detail
    assert last.reason in (Reason.STEADY, Reason.FORECAST, Reason.COOLDOWN)
    assert len(json.dumps(last.as_status())) < 4000


def test_a_queue_that_the_forecast_accounts_for_asks_for_nothing_until_more_is_late_than_may_be() -> None:
    fleet = Fleet(4)
    fleet.run(600, 3.6 * TAKES)
    assert fleet.memory.choice.late is not None
    fleet.run(4, 4.4 * TAKES)
    assert fleet.last is not None
    said = next(c for c in fleet.last.candidates if c.name == "queueAge")
    assert said.replicas is None and "no more of late than may be" in said.detail
    fleet.run(60, 6.0 * TAKES)
    assert any(n > 4 for n in fleet.history[-60:])
    assert "missed" not in said.detail


def test_replicas_that_do_not_start_are_replaced_but_not_for_ever() -> None:
    fleet = Fleet(4)
    fleet.run(300, 3.6 * TAKES)
    fleet.stuck = True
    fleet.run(900, 5.5 * TAKES)
    assert 6 < max(fleet.history) <= 12, "beside those that are stuck, at most as many as are ready"
    assert fleet.history[-1] - fleet.history[-300] <= 1


def test_full_batches_that_are_late_get_smaller() -> None:
    """Batches of more than six make one request in five late: room is made, and tried without seldom."""
    fleet = Fleet(3)
    fleet.run(300, 2.9 * TAKES)
    assert fleet.current == 3
    fleet.late, fleet.late_above = 0.2, 6
    fleet.run(400, 2.9 * TAKES)
    assert fleet.current == 4 and fleet.memory.fill < 0.9
    fleet.run(600, 2.9 * TAKES)
    assert max(fleet.history) == 4, "not for ever more"
    assert fleet.history[-600:].count(4) >= 500


def step_times_say(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """The engines' step times give a replica so many times what service teaches, which is believed."""
    told = Capacity(times * TAKES, "by step times", False)
    monkeypatch.setattr("headrace.scaling.context.by_step_times", lambda *_: told)
    monkeypatch.setattr("headrace.scaling.load.anchored", lambda _profile, _blocks, service: service)


@pytest.mark.parametrize(
    ("cold_start_s", "times", "load", "more"),
    [(30.0, 1.2, 2.7, True), (30.0, 1.2, 2.2, True), (31.0, 1.2, 2.7, False), (30.0, 1.0, 2.7, False)],
    ids=["soon-there", "nothing-waits", "not-soon-there", "step-times-agree"],
)
def test_while_all_is_well_a_replica_is_given_more_than_service_taught(
    monkeypatch: pytest.MonkeyPatch, cold_start_s: float, times: float, load: float, more: bool
) -> None:
    step_times_say(monkeypatch, times)
    fleet = Fleet(3, cold_start_s)
    fleet.run(840, load * TAKES)
    assert fleet.memory.fill == 1.0, "a quarter of an hour is not over"
    fleet.run(200, load * TAKES)
    assert (fleet.memory.fill > 1.0) == more
    fleet.late = 0.2
    fleet.run(61, load * TAKES)
    assert fleet.memory.fill <= 1.0, "given back at the first minute that is late"


def test_nothing_is_tried_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    step_times_say(monkeypatch, 1.2)
    fleet = Fleet(3)
    fleet.run(840, 2.7 * TAKES)
    fleet.run(600, 0.0)
    assert fleet.memory.fill == 1.0


@pytest.mark.parametrize(("surge", "fill"), [(14.0, 1.0), (1.5, 1.15)], ids=["surge", "none"])
def test_a_load_with_a_surge_that_nothing_saves_is_given_no_more_than_was_learned(
    monkeypatch: pytest.MonkeyPatch, surge: float, fill: float
) -> None:
    step_times_say(monkeypatch, 1.2)
    fleet = Fleet(3)
    fleet.run(480, 1.5 * TAKES)
    fleet.run(10, surge * TAKES)
    fleet.run(1250, 1.5 * TAKES)
    assert fleet.memory.price == LEAST_PRICE, "all is well again"
    assert fleet.memory.fill == fill


def test_engines_that_are_late_without_load_are_ill_and_get_no_help() -> None:
    fleet = Fleet(4)
    fleet.run(300, 1.5 * TAKES)
    fleet.late = 0.5
    fleet.run(600, 1.5 * TAKES)
    assert max(fleet.history[300:]) <= 4
    assert fleet.last is not None
    assert "ill" in next(c.detail for c in fleet.last.candidates if c.name == "goodput")
