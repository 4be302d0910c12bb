"""pick: who may be chosen, and who is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.routing.breaker import Breakers
from headrace.routing.ledger import LoadLedger
from headrace.routing.pick import View, measure, others_share, pick
from headrace.routing.types import Endpoint, NoCapacity, RouteRequest, Settings, Why
from headrace_wire.protocol import EngineState, Held, ModelInfo

NOW = 100.0
MODEL = ModelInfo(name="m", max_sequences=4, max_batch_tokens=1000)


def state(**more: object) -> EngineState:
    return EngineState(**{"model": MODEL, "total": 100, "free": 100, "prefill_rate": 1000.0, **more})  # type: ignore[arg-type]


def endpoint(name: str, report: EngineState | None = None, **more: object) -> Endpoint:
    made = Endpoint(name, f"{name}:8000", since=0.0, report=report or state(), reported_at=NOW - 0.2)
    return replace(made, **more)  # type: ignore[arg-type]


def view(settings: Settings | None = None) -> View:
    return View("gw", LoadLedger(), Breakers(), settings or Settings())


def request(id_: str = "r", prompt: int = 64, output: int = 64, **more: object) -> RouteRequest:
    return RouteRequest(id_, prompt, output, ttft_s=2.0, **more)  # type: ignore[arg-type]


def chosen(answer: Endpoint | NoCapacity) -> str:
    assert isinstance(answer, Endpoint), answer
    return answer.id


def why(answer: Endpoint | NoCapacity) -> Why:
    assert isinstance(answer, NoCapacity), answer
    return answer.why


@pytest.mark.parametrize(
    ("endpoints", "expected", "contended"),
    [
        pytest.param([], Why.NO_ENDPOINTS, False, id="none"),
        pytest.param([endpoint("a", ready=False)], Why.NOT_READY, False, id="loading"),
        pytest.param([endpoint("a", terminating=True)], Why.NOT_READY, False, id="terminating"),
        pytest.param([endpoint("a", state(draining=True))], Why.DRAINING, False, id="draining"),
        pytest.param(
            [replace(endpoint("a"), report=None, reported_at=None)], Why.NO_REPORT, False, id="never reported"
        ),
        pytest.param(
            [endpoint("a", state(holders={"other": Held(requests=4)}))], Why.SLOTS, True, id="full of others' requests"
        ),
        pytest.param(
            [endpoint("a", state(running=3, waiting=1))], Why.SLOTS, True, id="full of requests past any gateway"
        ),
        pytest.param(
            [endpoint("a", state(holders={"other": Held(requests=1, pages=99)}, free=1))], Why.PAGES, True, id="pages"
        ),
        pytest.param(
            [endpoint("a", state(holders={"other": Held(requests=1, queued_tokens=1500)}, queued_tokens=1500))],
            Why.PREFILL,
            True,
            id="1.5 s of prefill before half of 2 s",
        ),
    ],
)
def test_why_nobody_can_take_it(endpoints: list[Endpoint], expected: Why, contended: bool) -> None:
    answer = pick(request(), endpoints, view(), NOW)
    assert why(answer) is expected and expected.contended is contended


def test_pods_that_leave_get_nothing_while_others_serve() -> None:
    endpoints = [endpoint("a", terminating=True), endpoint("b", ready=False), endpoint("c", state(draining=True))]
    assert {chosen(pick(request(f"r{n}"), [*endpoints, endpoint("d")], view(), NOW)) for n in range(30)} == {"d"}


def test_least_load_by_own_ledger_alone_balances_without_any_new_report() -> None:
    seen, endpoints, loads = view(), [endpoint("a"), endpoint("b"), endpoint("c")], []
    for n in range(12):
        name = chosen(pick(request(f"r{n}"), endpoints, seen, NOW))
        loads.append(seen.ledger.dispatch(name, request(f"r{n}")))
    assert Counter(load.endpoint for load in loads) == {"a": 4, "b": 4, "c": 4}
    assert why(pick(request("more"), endpoints, seen, NOW)) is Why.SLOTS
    loads[0].release()
    assert chosen(pick(request("more"), endpoints, seen, NOW)) == loads[0].endpoint


def test_own_requests_in_a_report_are_not_counted_twice() -> None:
    seen = view()
    seen.ledger.dispatch("a", request(prompt=640, output=0))
    report = state(holders={"gw": Held(requests=1, pages=10)}, running=1, free=90)
    load = measure(endpoint("a", report), seen, NOW)
    assert (load.requests, load.pages) == (1, 10)


def test_what_ended_here_no_longer_counts_though_the_report_still_shows_it() -> None:
    report = state(holders={"gw": Held(requests=4, pages=40)}, running=4, free=60)
    assert measure(endpoint("a", report), view(), NOW).requests == 0


@pytest.mark.parametrize("age", [0.1, 1.5, 9.0, 60.0, 3600.0])
def test_a_late_report_freezes_the_others_share(age: float) -> None:
    busy = state(holders={"other": Held(requests=4, pages=50)}, free=50)
    old = endpoint("a", busy, reported_at=NOW - age)
    assert measure(old, view(), NOW).requests == 4
    assert why(pick(request(), [old], view(), NOW)) is Why.SLOTS


def test_all_reports_late_is_not_read_as_no_load() -> None:
    late = NOW - 30
    endpoints = [
        endpoint("a", state(holders={"other": Held(requests=3)}), reported_at=late),
        endpoint("b", state(holders={"other": Held(requests=1)}), reported_at=late),
    ]
    assert chosen(pick(request(), endpoints, view(), NOW)) == "b"


def test_an_endpoint_that_has_fallen_silent_is_chosen_last() -> None:
    endpoints = [endpoint("silent", reported_at=NOW - 11), endpoint("busy", state(running=2))]
    assert chosen(pick(request(), endpoints, view(), NOW)) == "busy"
    assert chosen(pick(request(), endpoints[:1], view(), NOW)) == "silent"


def test_others_share_takes_the_larger_of_holders_and_totals() -> None:
    report = state(holders={"gw": Held(requests=1, pages=10), "other": Held(requests=2, pages=5)}, running=6, free=70)
    assert others_share(report, "gw") == Held(requests=5, pages=20)
    assert others_share(report, "third") == Held(requests=6, pages=30)


def test_prefill_without_a_known_rate_is_bounded_by_an_engine_step() -> None:
    unknown = state(prefill_rate=0.0, holders={"other": Held(requests=1, queued_tokens=900)}, queued_tokens=900)
    assert chosen(pick(request(), [endpoint("a", unknown)], view(), NOW)) == "a"
    more = state(prefill_rate=0.0, holders={"other": Held(requests=1, queued_tokens=1100)}, queued_tokens=1100)
    assert why(pick(request(), [endpoint("a", more)], view(), NOW)) is Why.PREFILL


def test_a_late_request_still_gets_in() -> None:
    some = state(holders={"other": Held(requests=1, queued_tokens=200)}, queued_tokens=200)
    assert chosen(pick(request(waited_s=60.0), [endpoint("a", some)], view(), NOW)) == "a"


def test_an_idle_endpoint_takes_what_could_fit_nowhere() -> None:
    assert chosen(pick(request(prompt=64_000), [endpoint("a")], view(), NOW)) == "a"
    assert chosen(pick(request(choices=9), [endpoint("a")], view(), NOW)) == "a"


def test_only_pages_leave_hope_for_smaller_requests() -> None:
    full = endpoint("a", state(holders={"o": Held(requests=4)}))
    tight = endpoint("b", state(holders={"o": Held(requests=1, pages=99)}, free=1))
    answer = pick(request(), [full, tight], view(), NOW)
    assert why(answer) is Why.PAGES and Why.PAGES.this_request_only
    assert not Why.SLOTS.this_request_only and not Why.PREFILL.this_request_only


def test_equal_loads_are_told_apart_by_the_request_and_always_the_same_way() -> None:
    endpoints = [endpoint(name) for name in "abcd"]
    answers = [chosen(pick(request(f"r{n}"), endpoints, view(), NOW)) for n in range(400)]
    assert answers == [chosen(pick(request(f"r{n}"), endpoints[::-1], view(), NOW)) for n in range(400)]
    assert all(70 <= count <= 130 for count in Counter(answers).values())


def test_a_restarted_endpoint_does_not_take_every_request() -> None:
    seen = view()
    big = ModelInfo(name="m", max_sequences=100)
    old = endpoint("old", state(model=big, running=30))
    new = endpoint("new", state(model=big), since=NOW - 1)
    names = []
    for n in range(30):
        name = chosen(pick(request(f"r{n}"), [old, new], seen, NOW))
        seen.ledger.dispatch(name, request(f"r{n}")).tokens_seen(1)
        names.append(name)
    assert 1 <= names.count("new") <= 10


def test_slow_start_does_not_hold_back_a_waiting_room() -> None:
    seen, new = view(), endpoint("new", since=NOW)
    for n in range(4):
        seen.ledger.dispatch(chosen(pick(request(f"r{n}"), [new], seen, NOW)), request(f"r{n}"))


def test_an_endpoint_on_which_it_failed_is_avoided() -> None:
    endpoints = [endpoint("a"), endpoint("b")]
    assert chosen(pick(request(avoid=frozenset("a")), endpoints, view(), NOW)) == "b"
    assert why(pick(request(avoid=frozenset("ab")), endpoints, view(), NOW)) is Why.AVOIDED


def test_a_broken_endpoint_rests_and_the_last_one_is_still_probed() -> None:
    seen = view()
    for name, at in (("a", NOW), ("b", NOW)):
        for _ in range(5):
            seen.breakers.acquire(name).failure(at)
    endpoints = [endpoint("a"), endpoint("b")]
    assert {chosen(pick(request(f"r{n}"), [*endpoints, endpoint("c")], seen, NOW)) for n in range(20)} == {"c"}
    probed = chosen(pick(request(), endpoints, seen, NOW))
    seen.breakers.acquire(probed)
    other = chosen(pick(request(), endpoints, seen, NOW))
    assert other != probed
    seen.breakers.acquire(other)
    assert why(pick(request(), endpoints, seen, NOW)) is Why.BREAKER


ENDPOINTS = st.lists(
    st.tuples(
        st.booleans(), st.booleans(), st.booleans(), st.integers(0, 6), st.integers(0, 120), st.integers(0, 3000)
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(ENDPOINTS, st.integers(0, 8000), st.integers(1, 5), st.integers(0, 4))
def test_whoever_is_chosen_serves_and_has_room(
    rows: list[tuple[bool, bool, bool, int, int, int]], prompt: int, choices: int, own: int
) -> None:
    seen, endpoints = view(), []
    for n, (ready, leaving, draining, requests, pages, queued) in enumerate(rows):
        held = {"other": Held(requests=requests, pages=pages, queued_tokens=queued)}
        report = state(holders=held, draining=draining, free=max(0, 100 - pages), queued_tokens=queued)
        endpoints.append(endpoint(f"e{n}", report, ready=ready, terminating=leaving))
        for k in range(min(own, n)):
            seen.ledger.dispatch(f"e{n}", request(f"own{k}"))
    asked = request(prompt=prompt, choices=choices)
    answer = pick(asked, endpoints, seen, NOW)
    assert answer == pick(asked, list(reversed(endpoints)), seen, NOW) or isinstance(answer, NoCapacity)
    if isinstance(answer, Endpoint):
        load = measure(answer, seen, NOW)
        assert answer.ready and not answer.terminating
        assert answer.report is not None and not answer.report.draining
        assert load.requests == 0 or load.requests + choices <= 4
