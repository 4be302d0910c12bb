"""Retry-After: from the drain rate, or from what is left of a cold start."""

from __future__ import annotations

import pytest

from headrace.admission.retry import MAX_S, DrainRate, cold_retry_after, header, retry_after


@pytest.mark.parametrize(
    ("ahead", "rate", "least", "most"),
    [
        pytest.param(0, 1.0, 1, 1, id="nothing ahead"),
        pytest.param(100, 10.0, 10, 12, id="ten seconds of queue, spread"),
        pytest.param(5, 0.0, MAX_S, MAX_S, id="nothing moves"),
        pytest.param(10**9, 0.001, MAX_S, MAX_S, id="capped"),
        pytest.param(1, 1000.0, 1, 1, id="at least a second"),
    ],
)
def test_from_the_drain_rate(ahead: int, rate: float, least: int, most: int) -> None:
    answers = {retry_after(ahead, rate, f"r{n}") for n in range(50)}
    assert least <= min(answers) and max(answers) <= most


def test_callers_refused_together_do_not_return_together() -> None:
    assert len({retry_after(1000, 10.0, f"r{n}") for n in range(100)}) > 10
    assert retry_after(1000, 10.0, "r") == retry_after(1000, 10.0, "r")


@pytest.mark.parametrize(
    ("cold", "waited", "least", "most"),
    [
        pytest.param(60.0, 0.0, 60, 72, id="whole"),
        pytest.param(60.0, 50.0, 10, 12, id="rest"),
        pytest.param(60.0, 90.0, 1, 1, id="overdue"),
        pytest.param(None, 0.0, 30, 36, id="never measured"),
    ],
)
def test_from_the_cold_start(cold: float | None, waited: float, least: int, most: int) -> None:
    assert least <= cold_retry_after(cold, waited, "r") <= most


def test_the_rate_is_over_half_a_minute() -> None:
    drain = DrainRate()
    assert drain.rate(0.0) == 0.0
    for n in range(60):
        drain.record(n / 2)
    assert drain.rate(30.0) == pytest.approx(2.0, rel=0.05)
    assert drain.rate(45.0) == pytest.approx(1.0, rel=0.05)
    assert drain.rate(100.0) == 0.0


def test_a_fast_queue_is_measured_over_the_last_thousand() -> None:
    drain = DrainRate()
    for n in range(5000):
        drain.record(n / 1000)
    assert drain.rate(5.0) == pytest.approx(1000, rel=0.05)


def test_a_header_is_whole_seconds_rounded_up() -> None:
    assert [header(s) for s in (0.0, 0.2, 1.0, 1.01, 59.5)] == [1, 1, 1, 2, 60]
