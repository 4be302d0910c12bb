"""The error budget: the price of a late request, and when the queue may ask for more than the forecast."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scaling.budget import LEAST_PRICE, MOST_PRICE, Spending, price_after
from headrace.scaling.rehearsal import FIRST_PRICE, HEADROOMS, Choice, Plant, Setting, choose
from headrace.scaling.signals import Goodput


def spent(good: int, offered: int = 100, *, shed: int = 0, usual: int = 100, late: float = 0.05) -> Spending:
    """A minute of which so many were good, after minutes with `usual` offered in each."""
    return Spending(late, Goodput(good, offered, offered - shed, shed), Goodput(5 * usual, 5 * usual, 0, 0), 5.0)


@pytest.mark.parametrize(
    ("classes", "waited", "moves"),
    [
        pytest.param([], True, 0, id="nothing offered"),
        pytest.param([spent(100)], True, -1, id="all good"),
        pytest.param([spent(96)], True, -1, id="fewer late than may be"),
        pytest.param([spent(90)], True, 1, id="more late than may be"),
        pytest.param([spent(50)], False, -1, id="late though nothing waited: no want of replicas"),
        pytest.param([spent(50, shed=50)], False, 1, id="shed"),
        pytest.param([spent(100), spent(80)], True, 1, id="the class that is furthest below decides"),
        pytest.param([spent(93, late=0.1)], True, -1, id="a laxer objective"),
    ],
)
def test_the_price_follows_what_is_missed(classes: list[Spending], waited: bool, moves: int) -> None:
    after = price_after(FIRST_PRICE, classes, waited)
    assert (after > FIRST_PRICE) - (after < FIRST_PRICE) == moves


def test_a_burst_in_a_quiet_service_weighs_more_than_one_in_a_busy_one() -> None:
    quiet, busy = spent(50, usual=100), spent(50, usual=1000)
    assert price_after(4.0, [quiet], True) > price_after(4.0, [busy], True) > 4.0


def test_exact_minutes() -> None:
    assert price_after(4.0, [spent(100)], True) == pytest.approx(4.0 * math.exp(-3 * 0.045))
    assert price_after(4.0, [spent(80)], True) == pytest.approx(4.0 * math.exp(2 * (0.2 - 0.045)))
    assert price_after(4.0, [spent(0, usual=10)], True) == pytest.approx(4.0 * math.exp(2.0)), "bounded in one minute"


@given(
    st.floats(LEAST_PRICE, MOST_PRICE),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=3),
    st.booleans(),
)
def test_the_price_stays_within_its_bounds(price: float, classes: list[tuple[int, int, int]], waited: bool) -> None:
    after = price_after(price, [spent(g, o, shed=s) for g, o, s in classes], waited)
    assert LEAST_PRICE <= after <= MOST_PRICE


@given(st.integers(0, 100), st.integers(0, 100))
def test_more_good_requests_never_make_it_dearer(a: int, b: int) -> None:
    fewer, more = sorted((a, b))
    assert price_after(4.0, [spent(more)], True) <= price_after(4.0, [spent(fewer)], True)


def bursts(quiet: float, burst: float) -> list[float]:
    """Half an hour in bins of five seconds, one of which in each minute is a burst."""
    return [burst if i % 12 == 0 else quiet for i in range(360)]


@pytest.mark.parametrize("price", [1.0, 10.0, 100.0])
def test_a_dearer_request_never_gets_fewer_replicas(price: float) -> None:
    plant = Plant(1.0, 60.0, 1.0, 0.05)
    cheap = choose(bursts(2.0, 12.0), plant, Choice(), price)
    dear = choose(bursts(2.0, 12.0), plant, Choice(), 3 * price)
    assert cheap.late is not None and dear.late is not None
    assert dear.late <= cheap.late


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.0, 50.0), min_size=60, max_size=120), st.floats(0.5, 300.0), st.sampled_from(HEADROOMS))
def test_the_choice_is_never_dearer_than_the_present_way(arrivals: list[float], price: float, headroom: float) -> None:
    """Leaving out what cannot be cheaper leaves out nothing that is: the choice is one that stays."""
    plant = Plant(1.0, 30.0, 1.0, 0.05)
    first = choose(arrivals, plant, Choice(Setting(headroom, 60.0, False, 300.0)), price)
    again = choose(arrivals, plant, first, price)
    assert again.setting == first.setting and again.late == first.late


def test_a_fleet_that_is_too_small_is_late_even_if_it_has_not_been_yet() -> None:
    """Half a minute of patience hides a queue that only grows; rehearsal counts what waits at the end."""
    plant = Plant(1.0, 30.0, 600.0, 0.05)
    found = choose([4.5] * 60, plant, Choice(Setting(0.75, 60.0, False, 60.0)), 4.0)
    assert math.ceil(found.setting.headroom * 4.5) >= 5
