"""What no way to size a fleet would have saved, the first way, the most that there may be, and sustained overload."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.scaling.budget import Spending, price_after
from headrace.scaling.rehearsal import (
    BIN_S,
    HEADROOMS,
    Choice,
    Plant,
    Setting,
    choose,
    first_setting,
    unavoidable,
)
from headrace.scaling.signals import Goodput
from headrace.testing.scaling_world import Gauge, ready, world

PLANT = Plant(capacity=10.0, cold_start_s=30.0, slack_s=1.0, late=0.05)
FLAT = [20.0] * 60  # two replicas' load, five minutes
RATES = st.lists(st.floats(0, 500), min_size=1, max_size=80)


def burst(rate: float, bins: int = 4) -> list[float]:
    return [*FLAT, *[rate] * bins, *FLAT]


def test_steady_load_spares_nothing() -> None:
    assert sum(unavoidable(FLAT, PLANT)) == 0


def test_only_the_first_burst_is_unavoidable() -> None:
    """Nothing let expect it; the second one comes while the generous way still holds what the first one took."""
    once, twice = burst(200.0), [*burst(200.0), *burst(200.0)]
    first = sum(unavoidable(once, PLANT))
    assert first > 20
    assert sum(unavoidable(twice, PLANT)) == pytest.approx(first)


def test_what_takes_more_than_there_may_be_is_unavoidable_every_time() -> None:
    twice = [*burst(200.0), *burst(200.0)]
    few = Plant(10.0, 30.0, 1.0, 0.05, most=8)
    assert sum(unavoidable(twice, few)) > 1.5 * sum(unavoidable(burst(200.0), PLANT))


def test_the_first_cold_start_is_not_judged() -> None:
    assert unavoidable([500.0] * 6, PLANT) == []
    assert len(unavoidable(FLAT, PLANT)) == len(FLAT) - round(30.0 / BIN_S)


@given(RATES, st.integers(1, 100))
def test_no_more_is_spared_than_was_asked_for(rates: list[float], most: int) -> None:
    plant = Plant(10.0, 30.0, 1.0, 0.05, most)
    spared = unavoidable(rates, plant)
    assert all(bin_ >= 0 for bin_ in spared)
    assert sum(spared) <= sum(rates) / plant.capacity + 1e-6


def test_the_objective_is_planned_for_without_what_is_spared() -> None:
    """A burst that nothing saves has used the objective up. The small ones after it are saved all the same: held
    against every way, it would only make each replica dearer."""
    small = [*FLAT[:30], *[60.0] * 2]
    load = [*FLAT[:30], *[200.0] * 4, *(6 * small)]
    blind = choose(load, PLANT, Choice(), 1.0)
    seeing = choose(load, PLANT, Choice(), 1.0, unavoidable(load, PLANT))
    assert blind.late is not None and seeing.late is not None
    assert seeing.late < 0.75 * blind.late


def test_the_price_does_not_rise_for_what_is_spared() -> None:
    lost = Spending(0.05, Goodput(good=600, offered=1000), Goodput(good=4600, offered=5000), 5.0)
    dear = price_after(2.0, [lost], True)
    assert dear > 3.0
    assert price_after(2.0, [lost], True, 200.0) < dear
    assert price_after(2.0, [lost], True, 400.0) < 2.0
    assert math.isfinite(price_after(2.0, [lost], True, math.inf))


def test_no_way_is_rehearsed_with_more_than_there_may_be() -> None:
    """Bursts of twenty replicas, again and again: with at most three, rehearsal counts on no more."""
    load = 4 * [*FLAT[:30], *[200.0] * 4]
    free = choose(load, PLANT, Choice(), 100.0)
    bound = choose(load, Plant(10.0, 30.0, 1.0, 0.05, most=3), Choice(), 100.0)
    assert bound.late is not None and free.late is not None and bound.late > 0.4 > 0.2 > free.late


@pytest.mark.parametrize(
    ("load", "slack", "setting"),
    [
        pytest.param(FLAT, 1.0, Setting(), id="steady"),
        pytest.param([], 1.0, Setting(), id="nothing yet"),
        pytest.param([0.0] * 30, 1.0, Setting(), id="nobody yet"),
        pytest.param([*[0.0] * 100, *FLAT], 1.0, Setting(), id="steady since it began"),
        pytest.param(FLAT, 35.0, Setting(mean_s=30.0), id="a queue evens out half a minute"),
        pytest.param(FLAT, 900.0, Setting(mean_s=60.0), id="never more than a minute"),
        pytest.param([80.0, 80.0, *[0.0] * 3, 20.0], 1.0, Setting(headroom=1.51), id="a burst, 2.7 times the mean"),
        pytest.param(
            [80.0, 80.0, *[0.0] * 60, 1.0], 1.0, Setting(headroom=HEADROOMS[-1]), id="a burst, and hardly more"
        ),
        pytest.param([*FLAT, *[0.0] * 60], 1.0, Setting(), id="steady, then nobody"),
    ],
)
def test_the_first_way(load: list[float], slack: float, setting: Setting) -> None:
    assert first_setting(load, Plant(10.0, 30.0, slack, 0.05)) == setting


def test_a_queue_under_sustained_overload_is_no_part_of_any_plan() -> None:
    """Three replicas that take 4 requests/s each are asked for 12, then for 18: slots are full and the queue ages."""
    seen = world(min_replicas=1)
    seen.engines, seen.last_request = 3, 0.5
    count = 0

    def run(seconds: int, rate: int, gauge: Gauge) -> None:
        nonlocal count
        for _ in range(seconds):
            count += rate
            gauge.good = gauge.offered = gauge.admitted = count
            seen.run(1, gauge)

    run(240, 12, Gauge(in_flight=12))
    memory = seen.decide(ready(3)).memory
    rehearsed = Choice(Setting(headroom=0.75, mean_s=300.0, hold_s=60.0), late=0.04)

    def asked(age: float, queued: int) -> tuple[int | None, str]:
        run(1, 12, Gauge(in_flight=12, queued=queued, age=age))
        d = seen.decide(ready(3), type(memory)(choice=rehearsed, chosen_at=seen.now))
        return next((c.replicas, c.detail) for c in d.candidates if c.name == "queueAge")

    wanted, why = asked(1.5, 5)
    assert wanted is None and "forecast foresaw" in why
    for second in range(30):
        wanted, why = asked(1.5 + second, 5 + 6 * second)
    assert wanted is not None and wanted > 3, why
