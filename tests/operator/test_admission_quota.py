"""QuotaLedger: all limits or none, settled once, sliding minutes, UTC days."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.admission.quota import DAY, QuotaLedger, Reservation
from headrace.admission.types import Ask, Limit, Refusal, Usage
from headrace.api.tenant import Quota
from headrace_wire.reasons import Reason

TENANT = ("team", "search")
T0 = 1_000_000_000.0


def ledger(**limits: int) -> QuotaLedger:
    made = QuotaLedger()
    made.configure(TENANT, Quota(**limits))  # type: ignore[arg-type]
    return made


def granted(answer: Reservation | Refusal) -> Reservation:
    assert isinstance(answer, Reservation), answer
    return answer


def refused(answer: Reservation | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_five_calls_at_once_never_reserve_more_than_the_limit() -> None:
    book = ledger(tokens_per_minute=100)
    answers = [book.reserve(TENANT, Ask(10, 30), T0) for _ in range(5)]
    assert [isinstance(a, Reservation) for a in answers] == [True, True, False, False, False]
    assert book.usage(TENANT, T0).tokens_last_minute == 80


def test_exactly_the_limit_of_concurrent_requests_is_admitted() -> None:
    book = ledger(concurrent_requests=3)
    answers = [book.reserve(TENANT, Ask(1, 1), T0) for _ in range(10)]
    held = [a for a in answers if isinstance(a, Reservation)]
    assert len(held) == 3
    held[0].settle(2, T0 + 1)
    assert isinstance(book.reserve(TENANT, Ask(1, 1), T0 + 1), Reservation)


def test_choices_multiply_the_output_reserved() -> None:
    book = ledger(tokens_per_minute=1000)
    assert granted(book.reserve(TENANT, Ask(10, 100, choices=8), T0)).ask.tokens == 810
    assert refused(book.reserve(TENANT, Ask(10, 100, choices=8), T0)).limit is Limit.TOKENS_PER_MINUTE


def test_a_refused_request_burns_nothing_of_any_limit() -> None:
    book = ledger(requests_per_minute=5, tokens_per_minute=100, tokens_per_day=1000, concurrent_requests=5)
    granted(book.reserve(TENANT, Ask(50, 40), T0))
    before = book.usage(TENANT, T0)
    for _ in range(20):
        refused(book.reserve(TENANT, Ask(20, 20), T0))
    assert book.usage(TENANT, T0) == before


@dataclass(frozen=True)
class Impossible:
    limits: dict[str, int]
    ask: Ask
    limit: Limit


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Impossible({"max_tokens_per_request": 50}, Ask(10, 51), Limit.MAX_TOKENS_PER_REQUEST), id="output"
        ),
        pytest.param(
            Impossible({"max_tokens_per_request": 50}, Ask(1, 26, 2), Limit.MAX_TOKENS_PER_REQUEST), id="choices"
        ),
        pytest.param(Impossible({"tokens_per_minute": 100}, Ask(90, 11), Limit.TOKENS_PER_MINUTE), id="minute"),
        pytest.param(Impossible({"tokens_per_day": 100}, Ask(90, 11), Limit.TOKENS_PER_DAY), id="day"),
    ],
)
def test_what_can_never_fit_is_a_bad_request_without_retry(case: Impossible) -> None:
    refusal = refused(ledger(**case.limits).reserve(TENANT, case.ask, T0))
    assert (refusal.reason, refusal.limit) == (Reason.REQUEST_TOO_LARGE_FOR_QUOTA, case.limit)
    assert refusal.reason.status == 400 and refusal.retry_after_s is None
    assert str(next(iter(case.limits.values()))) in refusal.message


def test_retry_after_is_when_the_request_fits_and_not_before() -> None:
    book = ledger(tokens_per_minute=100)
    granted(book.reserve(TENANT, Ask(60, 0), T0))
    granted(book.reserve(TENANT, Ask(40, 0), T0 + 10))
    refusal = refused(book.reserve(TENANT, Ask(50, 0), T0 + 20))
    assert refusal.retry_after_s == pytest.approx(41)  # the first 60 leave at T0 + 61
    assert isinstance(book.reserve(TENANT, Ask(50, 0), T0 + 20 + 40.9), Refusal)
    assert isinstance(book.reserve(TENANT, Ask(50, 0), T0 + 20 + 41), Reservation)


def test_the_refusal_names_each_limit_that_binds_and_the_longest_wait() -> None:
    book = ledger(requests_per_minute=1, concurrent_requests=1, tokens_per_day=10)
    granted(book.reserve(TENANT, Ask(5, 5), T0))
    refusal = refused(book.reserve(TENANT, Ask(1, 1), T0))
    for name in ("requestsPerMinute", "concurrentRequests", "tokensPerDay"):
        assert name in refusal.message
    assert refusal.limit is Limit.TOKENS_PER_DAY
    assert refusal.retry_after_s == (T0 // DAY + 1) * DAY - T0
    assert refusal.error().retry_after == refusal.retry_after_s


def test_a_day_ends_at_midnight_utc_and_late_settlements_do_not_reach_the_next() -> None:
    midnight = (T0 // DAY + 1) * DAY
    book = ledger(tokens_per_day=100)
    late = granted(book.reserve(TENANT, Ask(50, 50), midnight - 5))
    refused(book.reserve(TENANT, Ask(1, 0), midnight - 1))
    granted(book.reserve(TENANT, Ask(60, 0), midnight))
    late.settle(10, midnight + 1)
    assert book.usage(TENANT, midnight + 1).tokens_today == 60


def test_settling_frees_what_was_not_used_at_once() -> None:
    book = ledger(tokens_per_minute=100, tokens_per_day=100)
    first = granted(book.reserve(TENANT, Ask(20, 80), T0))
    first.settle(30, T0 + 2)
    usage = book.usage(TENANT, T0 + 2)
    assert (usage.tokens_last_minute, usage.tokens_today, usage.concurrent_requests) == (30, 30, 0)
    assert usage.requests_last_minute == 1
    granted(book.reserve(TENANT, Ask(70, 0), T0 + 2))


@pytest.mark.parametrize(
    "ends", [("settle", "settle"), ("settle", "cancel"), ("cancel", "settle"), ("cancel", "cancel")]
)
def test_only_the_first_end_counts(ends: tuple[str, str]) -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(20, 80), T0))
    for end in ends:
        if end == "settle":
            held.settle(25, T0 + 1)
        else:
            held.cancel(T0 + 1)
    usage = book.usage(TENANT, T0 + 1)
    expected = (25, 1) if ends[0] == "settle" else (0, 0)
    assert (usage.tokens_last_minute, usage.requests_last_minute, usage.concurrent_requests) == (*expected, 0)


def test_more_than_reserved_is_charged_when_it_is_known() -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(10, 10), T0))
    held.settle(50, T0 + 70)
    assert book.usage(TENANT, T0 + 70).tokens_last_minute == 30  # the 20 of before have left the window


@pytest.mark.parametrize("end", ["settle", "cancel"])
def test_what_has_left_the_window_is_not_given_back(end: str) -> None:
    book = ledger(tokens_per_minute=100, requests_per_minute=2)
    held = granted(book.reserve(TENANT, Ask(10, 80), T0))
    if end == "settle":
        held.settle(10, T0 + 70)
    else:
        held.cancel(T0 + 70)
    assert book.usage(TENANT, T0 + 70) == Usage(tokens_today=10 if end == "settle" else 0)
    granted(book.reserve(TENANT, Ask(100, 0), T0 + 70))
    refused(book.reserve(TENANT, Ask(1, 0), T0 + 70))


def test_a_changed_spec_holds_for_the_live_ledger() -> None:
    book = ledger(tokens_per_minute=100)
    granted(book.reserve(TENANT, Ask(90, 0), T0))
    book.configure(TENANT, Quota(tokens_per_minute=50))  # type: ignore[call-arg]
    refused(book.reserve(TENANT, Ask(1, 0), T0 + 1))
    book.configure(TENANT, Quota(tokens_per_minute=200))  # type: ignore[call-arg]
    granted(book.reserve(TENANT, Ask(110, 0), T0 + 1))


def test_a_forgotten_tenant_s_reservations_may_still_end() -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(90, 0), T0))
    book.forget(TENANT)
    held.settle(10, T0 + 1)
    with pytest.raises(KeyError):
        book.reserve(TENANT, Ask(1, 1), T0 + 1)
    assert book.usage(TENANT, T0).tokens_last_minute == 0


def test_a_recount_moves_the_charge_or_changes_nothing() -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(10, 20), T0))
    assert held.amend(Ask(60, 20), T0 + 30) is None
    assert book.usage(TENANT, T0 + 30).tokens_last_minute == 80
    refusal = held.amend(Ask(90, 20), T0 + 31)
    assert refusal is not None and refusal.reason is Reason.REQUEST_TOO_LARGE_FOR_QUOTA
    assert held.ask == Ask(60, 20)
    assert book.usage(TENANT, T0 + 75).tokens_last_minute == 80  # counted from the recount on
    held.cancel(T0 + 75)
    assert book.usage(TENANT, T0 + 75).tokens_last_minute == 0


def test_a_recount_that_does_not_fit_beside_others_is_refused() -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(10, 10), T0))
    granted(book.reserve(TENANT, Ask(70, 0), T0))
    refusal = held.amend(Ask(30, 10), T0 + 1)
    assert refusal is not None and refusal.reason is Reason.QUOTA_EXCEEDED
    assert held.amend(Ask(20, 10), T0 + 1) is None


def test_a_recount_long_after_counts_anew() -> None:
    book = ledger(tokens_per_minute=100)
    held = granted(book.reserve(TENANT, Ask(10, 10), T0))
    assert held.amend(Ask(5, 5), T0 + 90) is None
    assert book.usage(TENANT, T0 + 90).tokens_last_minute == 0
    assert held.amend(Ask(50, 5), T0 + 91) is None
    assert book.usage(TENANT, T0 + 91).tokens_last_minute == 55


def test_a_clock_that_steps_back_frees_nothing() -> None:
    book = ledger(tokens_per_minute=100)
    granted(book.reserve(TENANT, Ask(90, 0), T0))
    refused(book.reserve(TENANT, Ask(20, 0), T0 - 3600))
    refused(book.reserve(TENANT, Ask(20, 0), T0 + 30))


STEP = st.tuples(
    st.sampled_from(["reserve", "settle", "cancel", "amend"]),
    st.floats(min_value=0, max_value=20),
    st.integers(min_value=0, max_value=60),
    st.integers(min_value=0, max_value=60),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_no_minute_ever_holds_more_than_its_limit(steps: list[tuple[str, float, int, int]]) -> None:
    """Whatever happens, what was admitted in any 60 s stays within the limit, and in-use returns to 0."""
    book = ledger(tokens_per_minute=100, concurrent_requests=4)
    now, held = T0, list[Reservation]()
    charges: dict[Reservation, tuple[float, int]] = {}  # when and what
    for kind, wait, a, b in steps:
        now += wait
        if kind == "reserve":
            answer = book.reserve(TENANT, Ask(a, b), now)
            if isinstance(answer, Reservation):
                held.append(answer)
                charges[answer] = (now, a + b)
        elif held and kind == "amend":
            one = held[a % len(held)]
            at, before = charges[one]
            if one.amend(Ask(a, b), now) is None:
                charges[one] = (now if a + b > before else at, a + b)
        elif held:
            done = held.pop(a % len(held))
            at, before = charges[done]
            if kind == "settle":
                done.settle(min(b, before), now)
                charges[done] = (at, min(b, before))
            else:
                done.cancel(now)
                charges[done] = (at, 0)
        assert sum(tokens for at, tokens in charges.values() if now - at < 60) <= 100
        assert 0 <= book.usage(TENANT, now).tokens_last_minute <= 100
        assert book.usage(TENANT, now).concurrent_requests == len(held) <= 4
    for item in held:
        item.cancel(now)
    assert book.usage(TENANT, now + 61).tokens_last_minute == 0
    assert book.usage(TENANT, now).concurrent_requests == 0
