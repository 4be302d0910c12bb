"""Deadlines of waiting requests, and what engines usually take to begin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admission.deadline import LEAST_STARTS, SEEN_S, StartDelays, latest
from headrace.admission.queue import FairQueue
from headrace.admission.types import ClassRule, Item, QueueLimits

RULE = ClassRule(100, ttft_s=2.0)


def seen(delays: list[float], now: float = 100.0) -> StartDelays:
    made = StartDelays()
    for delay in delays:
        made.record(now, delay, 0.0)
    return made


@pytest.mark.parametrize(
    ("start_s", "client_s", "expected"),
    [
        pytest.param(0.0, None, 12.0, id="the whole target"),
        pytest.param(0.3, None, 11.7, id="less what the start takes"),
        pytest.param(5.0, None, 11.0, id="half of it at least"),
        pytest.param(0.3, 1.0, 10.7, id="the client brings it forward"),
        pytest.param(0.3, 9.0, 11.7, id="and never back"),
    ],
)
def test_latest(start_s: float, client_s: float | None, expected: float) -> None:
    assert latest(10.0, RULE, client_s, start_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("delays", "usual"),
    [
        pytest.param([], 0.0, id="nothing seen"),
        pytest.param([3.0] * (LEAST_STARTS - 1), 0.0, id="too few"),
        pytest.param([0.1] * LEAST_STARTS, 0.1, id="enough"),
        pytest.param([0.1] * 95 + [9.0] * 5, 0.1, id="one in twenty is not usual"),
        pytest.param([0.1] * 94 + [9.0] * 6, 9.0, id="more are"),
    ],
)
def test_the_usual_delay_covers_95_percent(delays: list[float], usual: float) -> None:
    assert seen(delays).usual_s(100.0) == usual


def test_own_prefill_is_no_delay() -> None:
    delays = StartDelays()
    for _ in range(LEAST_STARTS):
        delays.record(0.0, 0.5, 0.4)
    assert delays.usual_s(0.0) == pytest.approx(0.1)
    for _ in range(20 * LEAST_STARTS):
        delays.record(0.0, 0.1, 0.4)  # a prefix was cached
    assert delays.usual_s(0.0) == 0.0


def test_a_minute_old_is_forgotten() -> None:
    delays = seen([2.0] * LEAST_STARTS, now=100.0)
    for _ in range(LEAST_STARTS):
        delays.record(100.0 + SEEN_S / 2, 0.2, 0.0)
    assert delays.usual_s(100.0 + SEEN_S) == 2.0
    assert delays.usual_s(100.1 + SEEN_S) == 0.2
    assert delays.usual_s(1000.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)), max_size=60))
def test_as_a_sort_of_the_last_minute_would_have_it(starts: list[tuple[float, float]]) -> None:
    delays, now, kept = StartDelays(), 0.0, []
    for passed, delay in starts:
        now += passed
        delays.record(now, delay, 0.0)
        kept.append((now, delay))
    recent = sorted(delay for at, delay in kept if at >= now - SEEN_S)
    expected = recent[-(-len(recent) * 95 // 100) - 1] if len(recent) >= LEAST_STARTS else 0.0
    assert delays.usual_s(now) == expected


def test_a_queue_sheds_what_could_not_begin_in_time_at_the_usual_delay() -> None:
    queue: FairQueue[None] = FairQueue(QueueLimits(), {"default": RULE})
    queue.set_endpoints(True)
    for name, delay in (("idle", 0.0), ("busy", 0.4)):
        queue.push(Item(name, ("ns", "tenant"), "default", 0.0, None, prompt_tokens=100), 1000.0, delay_s=delay)
    assert [expired.item.id for expired in queue.expire(1.6)] == ["busy"]
    assert [expired.item.id for expired in queue.expire(2.0)] == ["idle"]
