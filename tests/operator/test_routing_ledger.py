"""LoadLedger and breakers: nothing leaks, and an endpoint that recovers is used again."""

from __future__ import annotations

import random

import pytest

from headrace.routing.breaker import Breakers, BreakerSettings
from headrace.routing.ledger import LoadLedger, predicted_pages
from headrace.routing.types import RouteRequest
from headrace_wire.protocol import Held


def request(id_: str = "r", prompt: int = 100, output: int = 100, choices: int = 1) -> RouteRequest:
    return RouteRequest(id_, prompt, output, ttft_s=1.0, choices=choices)


@pytest.mark.parametrize(
    ("prompt", "output", "choices", "pages"),
    [
        pytest.param(64, 64, 1, 2, id="exact"),
        pytest.param(65, 64, 1, 3, id="one more"),
        pytest.param(0, 0, 1, 0, id="nothing"),
        pytest.param(640, 256, 4, 10 + 4, id="choices share the prompt's full pages"),
        pytest.param(650, 256, 4, 10 + 4 * 2, id="and not its partial one"),
    ],
)
def test_predicted_pages(prompt: int, output: int, choices: int, pages: int) -> None:
    assert predicted_pages(request(prompt=prompt, output=output, choices=choices)) == pages


def test_load_counts_from_dispatch_and_ends_once() -> None:
    ledger = LoadLedger()
    load = ledger.dispatch("a", request(prompt=100, output=28))
    assert ledger.held("a") == Held(requests=1, pages=2, queued_tokens=100)
    load.tokens_seen(1)
    assert ledger.held("a") == Held(requests=1, pages=2, queued_tokens=0)
    load.tokens_seen(500)
    assert ledger.held("a").pages == 10
    load.release()
    load.release()
    load.tokens_seen(900)
    assert ledger.held("a") == Held() and ledger.endpoints() == []


def test_choices_are_sequences() -> None:
    ledger = LoadLedger()
    load = ledger.dispatch("a", request(choices=3))
    assert ledger.held("a").requests == 3
    load.release()
    assert ledger.endpoints() == []


def test_a_cancel_storm_returns_every_counter_to_zero() -> None:
    ledger, draw = LoadLedger(), random.Random(1)
    loads = [
        ledger.dispatch(draw.choice("abc"), request(f"r{n}", draw.randrange(5000), draw.randrange(900), 1 + n % 3))
        for n in range(3000)
    ]
    for _ in range(5000):
        load = draw.choice(loads)
        if draw.random() < 0.5:
            load.tokens_seen(draw.randrange(2000))
        else:
            load.release()
    for load in loads:
        load.release()
    assert ledger.endpoints() == []
    assert all(ledger.held(name) == Held() for name in "abc")


SETTINGS = BreakerSettings(failures=3, open_s=10.0, open_max_s=30.0, probes=1, successes=2)


def fail(breakers: Breakers, times: int, now: float) -> None:
    for _ in range(times):
        breakers.acquire("a").failure(now)


def test_a_breaker_opens_on_failures_in_a_row_only() -> None:
    breakers = Breakers(SETTINGS)
    for _ in range(5):
        fail(breakers, 2, 0.0)
        breakers.acquire("a").success()
    assert breakers.allows("a", 0.0)
    fail(breakers, 3, 0.0)
    assert not breakers.allows("a", 9.9) and breakers.is_open("a", 9.9)
    assert breakers.allows("b", 0.0)


def test_spike_then_calm_closes_through_a_few_probes() -> None:
    breakers = Breakers(SETTINGS)
    fail(breakers, 3, 0.0)
    assert breakers.allows("a", 10.0)
    probe = breakers.acquire("a")
    assert not breakers.allows("a", 10.0)
    probe.success()
    probe.success()
    assert breakers.allows("a", 10.0)
    breakers.acquire("a").success()
    assert all(breakers.allows("a", 10.0) for _ in range(3))
    held = [breakers.acquire("a") for _ in range(5)]  # closed: no longer bounded
    assert breakers.allows("a", 10.0)
    for permit in held:
        permit.success()


def test_a_failed_probe_opens_for_longer_up_to_a_bound() -> None:
    breakers = Breakers(SETTINGS)
    fail(breakers, 3, 0.0)
    rests, now = [], 0.0
    for _ in range(4):
        opened = now
        while not breakers.allows("a", now):
            now += 1.0
        rests.append(now - opened)
        breakers.acquire("a").failure(now)
    assert rests == [10.0, 20.0, 30.0, 30.0]


def test_a_cancelled_probe_frees_its_place_and_says_nothing() -> None:
    breakers = Breakers(SETTINGS)
    fail(breakers, 3, 0.0)
    breakers.acquire("a").abandon()
    assert breakers.allows("a", 10.0)
    breakers.acquire("b").abandon()
    assert breakers.allows("b", 0.0)


def test_failures_of_requests_sent_before_the_breaker_opened_do_not_prolong_it() -> None:
    breakers = Breakers(SETTINGS)
    stragglers = [breakers.acquire("a") for _ in range(10)]
    for n, permit in enumerate(stragglers):
        permit.failure(float(n) / 2)
    assert breakers.allows("a", 11.0)


def test_a_forgotten_endpoint_starts_anew() -> None:
    breakers = Breakers(SETTINGS)
    fail(breakers, 3, 0.0)
    breakers.forget("a")
    assert breakers.allows("a", 0.0)
