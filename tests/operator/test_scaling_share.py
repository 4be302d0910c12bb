"""Who gets the last one: several Models within one budget."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.scaling import Reason
from headrace.scaling.share import Claim, Grant, share
from headrace.scaling.types import Allowed
from headrace.testing.scaling_world import Gauge, World, answer, policy, ready

GPU, CPU = "gpu", "cpu"


def claim(
    name: str, wanted: int, least: int = 0, placed: int = 0, weight: int = 1, gpu: int = 1, cpu: int = 0
) -> Claim:
    cost = {GPU: Decimal(gpu), CPU: Decimal(cpu)}
    return Claim(("ns", name), least, placed, wanted, weight, {k: v for k, v in cost.items() if v})


ROWS = {
    "enough for all": ([claim("a", 2), claim("b", 3)], 5, [2, 3]),
    "the last one goes where more is lacking": ([claim("a", 4, placed=3), claim("b", 2, placed=1)], 5, [3, 2]),
    "who has none goes before who has one": ([claim("a", 3, placed=1), claim("b", 1)], 2, [1, 1]),
    "weight counts": ([claim("a", 4, placed=3, weight=3), claim("b", 2, placed=1)], 5, [4, 1]),
    "a tie goes by name": ([claim("b", 1), claim("a", 1)], 1, [0, 1]),
    "what runs is kept against another's growth": (
        [claim("a", 9, placed=1, weight=1000), claim("b", 3, placed=3)], 4, [1, 3],
    ),
    "but not against another's least": ([claim("a", 2, least=2), claim("b", 4, least=1, placed=4)], 4, [2, 2]),
    "what is no longer wanted is free": ([claim("a", 3, placed=1), claim("b", 1, placed=3)], 4, [3, 1]),
    "a larger replica is passed over": ([claim("a", 1, gpu=4), claim("b", 3)], 3, [0, 3]),
    "nothing at all": ([claim("a", 2, least=1), claim("b", 1)], 0, [0, 0]),
    "others took more than there is": ([claim("a", 2, least=1)], -3, [0]),
    "a waiting replica is given up for a needier one": (
        [claim("a", 3, placed=2), claim("b", 1, placed=0)], 3, [2, 1],
    ),
    "nobody wants": ([claim("a", 0)], 1, [0]),
}  # fmt: skip


@pytest.mark.parametrize(("claims", "gpus", "expected"), ROWS.values(), ids=ROWS)
def test_share(claims: list[Claim], gpus: int, expected: list[int]) -> None:
    found = share(claims, {GPU: Decimal(gpus)})
    assert [found[c.key].replicas for c in claims] == expected
    for c in claims:
        assert (found[c.key].lacking != ()) == (found[c.key].replicas < max(c.wanted, c.least))


def test_what_runs_out_is_named_and_what_is_not_in_the_budget_is_not_scarce() -> None:
    found = share([claim("a", 4, cpu=2), claim("b", 1, gpu=0, cpu=1)], {GPU: Decimal(9), CPU: Decimal("5.5")})
    assert found["ns", "a"] == Grant(2, (CPU,))
    assert found["ns", "b"] == Grant(1)
    assert share([claim("a", 4)], {})["ns", "a"] == Grant(4)


def claims_of(costs: st.SearchStrategy[int]) -> st.SearchStrategy[list[Claim]]:
    small = st.integers(0, 5)
    one = st.builds(
        lambda wanted, least, placed, weight, gpu, cpu: (wanted, least, placed, weight, gpu, cpu),
        small, st.integers(0, 3), small, st.integers(1, 9), costs, st.integers(0, 3),
    )  # fmt: skip
    return st.lists(one, min_size=1, max_size=5).map(
        lambda rows: [claim(f"m{i}", max(w, n), n, p, k, g, c) for i, (w, n, p, k, g, c) in enumerate(rows)]
    )


budgets = st.builds(lambda g, c: {GPU: Decimal(g), CPU: Decimal(c)}, st.integers(0, 20), st.integers(0, 20))


@given(claims=claims_of(st.integers(0, 4)), budget=budgets, seed=st.integers(0, 99))
def test_shares_stay_within_the_budget_and_do_not_depend_on_the_order(
    claims: list[Claim], budget: dict[str, Decimal], seed: int
) -> None:
    found = share(claims, budget)
    for name, most in budget.items():
        assert sum(c.cost.get(name, 0) * found[c.key].replicas for c in claims) <= most
    for c in claims:
        assert 0 <= found[c.key].replicas <= max(c.wanted, c.least)
    shuffled = list(claims)
    random.Random(seed).shuffle(shuffled)
    assert share(shuffled, budget) == found


@given(claims=claims_of(st.integers(0, 4)), budget=budgets)
def test_nobody_is_below_its_least_for_anothers_luxury(claims: list[Claim], budget: dict[str, Decimal]) -> None:
    """What a Model lacks of its least does not fit beside what the others have of theirs."""
    found = share(claims, budget)
    for poor in (c for c in claims if found[c.key].replicas < c.least):
        name = found[poor.key].lacking[0]
        leasts = sum(min(found[c.key].replicas, c.least) * c.cost.get(name, Decimal(0)) for c in claims)
        assert leasts + poor.cost[name] > budget[name]


@given(claims=claims_of(st.integers(0, 4)), budget=budgets)
def test_nothing_lies_idle_that_somebody_wants_and_could_use(claims: list[Claim], budget: dict[str, Decimal]) -> None:
    found = share(claims, budget)
    left = {n: most - sum(c.cost.get(n, 0) * found[c.key].replicas for c in claims) for n, most in budget.items()}
    for c in claims:
        if found[c.key].replicas < max(c.wanted, c.least):
            assert any(c.cost[name] > left[name] for name in c.cost)


@given(claims=claims_of(st.just(2)), gpus=st.integers(0, 20), more=st.integers(1, 9))
def test_with_replicas_of_one_size_more_room_takes_from_nobody(claims: list[Claim], gpus: int, more: int) -> None:
    before, after = (share(claims, {GPU: Decimal(n)}) for n in (gpus, gpus + more))
    assert all(before[c.key].replicas <= after[c.key].replicas for c in claims)


@given(claims=claims_of(st.integers(0, 4)), budget=budgets, heavier=st.integers(1, 50), wants=st.integers(0, 4))
def test_who_weighs_or_wants_more_gets_no_less(
    claims: list[Claim], budget: dict[str, Decimal], heavier: int, wants: int
) -> None:
    first, *others = claims
    more = Claim(first.key, first.least, first.placed, first.wanted + wants, first.weight + heavier, first.cost)
    before, after = share(claims, budget), share([more, *others], budget)
    assert before[first.key].replicas <= after[first.key].replicas


# The guard in a decision

WAITS = Gauge(queued=10, age=1.5, in_flight=4)
NO_MORE = "no more requests.nvidia.com/gpu of the quota of namespace ns: by weighted shortfall ns/chat 3 of 4 wanted"


@pytest.mark.parametrize(
    ("least", "current", "most", "expected", "effect"),
    [
        pytest.param(0, 2, 3, (3, Reason.QUEUE_AGE), "4 → 3", id="growth is cut short"),
        pytest.param(0, 2, 2, (2, Reason.BUDGET), "4 → 2", id="growth is prevented"),
        pytest.param(0, 2, 1, (1, Reason.BUDGET), "4 → 1", id="one goes to another's least"),
        pytest.param(2, 2, 1, (2, Reason.MIN_REPLICAS), "4 → 1", id="its own least is asked for all the same"),
        pytest.param(0, 2, 9, (4, Reason.QUEUE_AGE), None, id="more than it asks for binds nothing"),
    ],
)
def test_guard_budget(least: int, current: int, most: int, expected: tuple[int, Reason], effect: str | None) -> None:
    on = World(policy(min_replicas=least), engines=current).run(25, WAITS)
    decision = on.decide(ready(current, allowed=Allowed(most=most, detail=NO_MORE)))
    assert answer(decision) == expected
    bound = [g for g in decision.guards if g.name == "budget"]
    assert [g.effect for g in bound] == ([] if effect is None else [effect])
    assert effect is None or NO_MORE in decision.message
