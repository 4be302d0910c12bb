"""FairQueue: order, ageing, deadlines, bounds, cancellation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.admission.queue import FairQueue
from headrace.admission.types import Blocked, ClassRule, Item, QueueLimits
from headrace_wire.reasons import Reason

RULES = {"interactive": ClassRule(100, ttft_s=4.0), "batch": ClassRule(10, ttft_s=60.0)}
Queue = FairQueue[None]


def queue(limits: QueueLimits | None = None, *, endpoints: bool = True) -> Queue:
    made: Queue = FairQueue(limits or QueueLimits(), RULES)
    made.set_endpoints(endpoints)
    return made


def item(id_: str, arrived: float = 0.0, service_class: str = "interactive", **more: object) -> Item[None]:
    return Item(id_, ("ns", "tenant"), service_class, arrived, None, **more)  # type: ignore[arg-type]


def take(q: Queue, now: float, admit: Callable[[Item[None]], object] = lambda i: i.id) -> str | None:
    taken = q.take(admit, now)
    return None if taken is None else taken[0].id


def drain(q: Queue, now: float) -> list[str]:
    return list(iter(lambda: take(q, now), None))  # type: ignore[arg-type]


def test_a_class_is_first_come_first_served_and_the_higher_one_goes_first() -> None:
    q = queue()
    for name, cls in (("b1", "batch"), ("i1", "interactive"), ("b2", "batch"), ("i2", "interactive")):
        assert q.push(item(name, 0.0, cls)) is None
    assert drain(q, 0.1) == ["i1", "i2", "b1", "b2"]


def test_a_low_class_under_constant_high_load_waits_a_bounded_time() -> None:
    """One dispatch a second, always more interactive requests than that: batch heads go once in four from 15 s on."""
    q = queue(QueueLimits(requests=10_000))
    for n in range(5):
        q.push(item(f"b{n}", 0.0, "batch"))
    left: dict[str, float] = {}
    for second in range(60):
        for n in range(2):
            q.push(item(f"i{second}.{n}", float(second)))
        q.expire(float(second))
        name = take(q, float(second))
        assert name is not None
        left[name] = float(second)
    waits = [left[f"b{n}"] for n in range(5)]
    assert waits[0] <= 15 + 4
    assert all(later - earlier <= 4 for earlier, later in itertools.pairwise(waits))
    assert sum(1 for name in left if name.startswith("i")) > 40  # and the high class keeps most


def test_a_head_that_does_not_fit_lets_others_pass_but_not_for_ever() -> None:
    q = queue(QueueLimits(overtakes=5))
    q.push(item("big", prompt_tokens=1000))
    for n in range(20):
        q.push(item(f"s{n}", prompt_tokens=1))

    def small_only(i: Item[None]) -> object:
        return i.id if i.prompt_tokens < 100 else Blocked.ITEM

    passed = [take(q, 0.1, small_only) for _ in range(8)]
    assert passed == ["s0", "s1", "s2", "s3", "s4", None, None, None]
    assert take(q, 0.2) == "big"
    assert take(q, 0.3, small_only) == "s5"


def test_a_head_of_a_higher_class_that_does_not_fit_does_not_block_the_lower() -> None:
    q = queue()
    q.push(item("big", prompt_tokens=1000))
    q.push(item("b", 0.0, "batch"))
    assert take(q, 0.1, lambda i: i.id if i.prompt_tokens < 100 else Blocked.ITEM) == "b"


def test_nothing_else_is_tried_when_nothing_fits() -> None:
    q = queue()
    for n in range(50):
        q.push(item(f"i{n}"))
    tried: list[str] = []

    def full(i: Item[None]) -> Blocked:
        tried.append(i.id)
        return Blocked.ALL

    assert q.take(full, 0.0) is None
    assert tried == ["i0"]


@pytest.mark.parametrize(
    ("endpoints", "reason", "status"),
    [(True, Reason.QUEUE_FULL, 429), (False, Reason.NO_CAPACITY, 503)],
    ids=["with endpoints", "without"],
)
@pytest.mark.parametrize("limits", [QueueLimits(requests=2), QueueLimits(bytes=25)], ids=["count", "bytes"])
def test_a_full_queue_says_why(limits: QueueLimits, endpoints: bool, reason: Reason, status: int) -> None:
    q = queue(limits, endpoints=endpoints)
    assert [q.push(item(f"i{n}", bytes=10)) for n in range(2)] == [None, None]
    refusal = q.push(item("i2", bytes=10))
    assert refusal is not None and refusal.reason is reason and refusal.reason.status == status
    assert len(q) == 2 and q.bytes == 20


def test_a_retry_keeps_its_place_even_in_a_full_queue() -> None:
    q = queue(QueueLimits(requests=2))
    first = item("i0", arrived=0.0)
    q.push(first)
    assert take(q, 0.1) == "i0"
    q.push(item("i1", arrived=0.2))
    q.push(item("i2", arrived=0.3))
    assert q.push(first, front=True) is None
    assert q.oldest_age("interactive", 1.0) == 1.0
    assert drain(q, 0.5) == ["i0", "i1", "i2"]


@pytest.mark.parametrize(
    ("more", "rate", "latest"),
    [
        pytest.param({}, 0.0, 4.0, id="the class's TTFT"),
        pytest.param({"deadline_s": 1.5}, 0.0, 1.5, id="an earlier deadline of the client"),
        pytest.param({"deadline_s": 9.0}, 0.0, 4.0, id="a later one changes nothing"),
        pytest.param({"deadline_s": 0.0}, 0.0, 0.0, id="zero: at once or never"),
        pytest.param({"prompt_tokens": 100}, 100.0, 3.0, id="its own prefill takes a second"),
        pytest.param({"prompt_tokens": 5000}, 100.0, 2.0, id="a prefill longer than the target leaves half"),
    ],
)
def test_the_last_moment_to_begin(more: dict[str, object], rate: float, latest: float) -> None:
    q = queue()
    q.push(item("i", 0.0, **more), prefill_rate=rate)
    assert q.next_expiry() == latest
    assert q.expire(latest) == []
    expired = q.expire(latest + 0.01)
    assert [(e.item.id, e.refusal.reason) for e in expired] == [("i", Reason.DEADLINE_EXCEEDED)]
    assert len(q) == 0 and q.next_expiry() is None


def test_what_is_too_late_is_not_dispatched_even_before_it_is_swept() -> None:
    q = queue()
    q.push(item("late", 0.0))
    q.push(item("fresh", 9.0))
    assert take(q, 10.0) == "fresh"
    assert take(q, 10.0) is None


def test_the_waiting_room_waits_for_a_cold_start_and_its_requests_are_not_shed_when_it_ends() -> None:
    q = queue(endpoints=False)
    q.push(item("i", 0.0))
    assert q.expire(100.0) == []
    q.set_endpoints(True)
    assert q.expire(120.0) == []
    assert take(q, 120.0) == "i"


def test_a_wait_that_ends_while_the_pool_is_empty_is_no_capacity() -> None:
    q = queue(QueueLimits(cold_wait_s=30.0))
    q.push(item("class", 0.0))
    q.push(item("client", 0.0, deadline_s=2.0))
    q.set_endpoints(False)
    expired = q.expire(5.0, retry_after_s=12.0)
    assert [(e.item.id, e.refusal.reason, e.refusal.retry_after_s) for e in expired] == [
        ("client", Reason.NO_CAPACITY, 12.0)
    ]
    assert q.expire(29.0) == []
    assert [e.refusal.reason.status for e in q.expire(31.0)] == [503]


def test_cancelling_is_exact_and_a_storm_leaves_nothing() -> None:
    q = queue(QueueLimits(requests=100_000, bytes=10**9))
    items = [item(f"i{n}", bytes=10, prompt_tokens=3) for n in range(20_000)]
    for each in items:
        q.push(each)
    assert (len(q), q.bytes, q.queued_tokens("interactive")) == (20_000, 200_000, 60_000)
    for each in items:
        assert q.remove(each)
        assert not q.remove(each)
    assert (len(q), q.bytes, q.queued_tokens("interactive"), q.next_expiry()) == (0, 0, 0, None)
    assert q.oldest_age("interactive", 1.0) is None


def test_queue_age_is_by_class() -> None:
    q = queue()
    q.push(item("i", 5.0))
    q.push(item("b", 2.0, "batch"))
    assert (q.oldest_age("interactive", 8.0), q.oldest_age("batch", 8.0)) == (3.0, 6.0)
    assert (q.queued("interactive"), q.queued("none"), q.queued_tokens("none")) == (1, 0, 0)
    assert q.oldest_age("none", 8.0) is None


def test_classes_change_while_requests_wait() -> None:
    q = queue()
    q.push(item("b", 0.0, "batch"))
    q.configure({"interactive": ClassRule(100, ttft_s=1.0), "bulk": ClassRule(1, ttft_s=100.0)})
    assert q.queued("batch") == 1
    assert q.push(item("k", 0.0, "bulk")) is None
    assert drain(q, 0.5) == ["b", "k"]
    with pytest.raises(KeyError):
        q.push(item("x", 0.0, "nothing"))


def test_one_request_cannot_wait_twice() -> None:
    q = queue()
    q.push(item("i"))
    with pytest.raises(ValueError, match="waits already"):
        q.push(item("i"))


STEP = st.tuples(
    st.sampled_from(["push", "take", "cancel", "expire", "up", "down"]),
    st.floats(min_value=0, max_value=3),
    st.integers(min_value=0, max_value=50),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=80))
def test_every_request_leaves_exactly_once_and_the_sums_hold(steps: list[tuple[str, float, int]]) -> None:
    q = queue(QueueLimits(requests=8, bytes=100, cold_wait_s=10))
    now, serial = 0.0, 0
    waiting: dict[str, Item[None]] = {}

    def admit(i: Item[None]) -> object:
        return Blocked.ITEM if i.prompt_tokens % 3 == 0 else True

    for kind, wait, number in steps:
        now += wait
        if kind == "push":
            serial += 1
            made = item(f"r{serial}", now, ("interactive", "batch")[number % 2], bytes=number, prompt_tokens=number)
            if q.push(made) is None:
                waiting[made.id] = made
        elif kind == "take":
            taken = q.take(admit, now)
            if taken is not None:
                assert taken[0].latest >= now and waiting.pop(taken[0].id) is taken[0]
        elif kind == "cancel" and waiting:
            gone = waiting.pop(sorted(waiting)[number % len(waiting)])
            assert q.remove(gone)
        elif kind == "expire":
            for expired in q.expire(now):
                assert waiting.pop(expired.item.id).latest < now
            assert all(i.latest >= now for i in waiting.values())
        elif kind in ("up", "down"):
            q.set_endpoints(kind == "up")
        assert len(q) == len(waiting) <= 8
        assert q.bytes == sum(i.bytes for i in waiting.values()) <= 100
        ages = {c: q.oldest_age(c, now) for c in RULES}
        for name, age in ages.items():
            arrived = [i.arrived for i in waiting.values() if i.service_class == name]
            assert age == (now - min(arrived) if arrived else None)
