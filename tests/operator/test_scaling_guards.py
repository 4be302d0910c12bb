"""decide: what binds it, and the words in which it tells itself."""

from __future__ import annotations

import msgspec
import pytest

from headrace.api.model import Model
from headrace.api.slo import ServiceLevelObjective
from headrace.scaling import Memory, Policy, Reason, Replicas
from headrace.scaling.types import ClassPolicy, Refused
from headrace.testing.scaling_world import (
    T0,
    Gauge,
    answer,
    ready,
    world,
)

# ---- guards ---------------------------------------------------------------------------------------------------------


def test_no_data_stale_and_incomplete_hold_and_say_since_when() -> None:
    empty = world()
    assert answer(empty.decide(ready(3))) == (3, Reason.NO_DATA)
    silent = world()
    for _ in range(5):
        silent.now += 1
        silent.see(answers=False)
    assert answer(silent.decide(ready(3))) == (3, Reason.NO_DATA)
    assert "gateway gw" in silent.decide(ready(3)).message
    gone = world().run(30)
    since = gone.now
    gone.now += 30
    assert answer(gone.decide(ready(3))) == (3, Reason.STALE)
    assert "2023-11-14T22:13:50Z" in gone.decide(ready(3)).message and since == T0 + 30
    gap = world().run(30)
    gap.engine = {"age_s": None}
    gap.run(1)
    assert answer(gap.decide(ready(3))) == (3, Reason.INCOMPLETE) and "engine p0" in gap.decide(ready(3)).message


def test_a_metric_gap_in_the_middle_of_load_changes_nothing_and_is_over_after_it() -> None:
    seen = world().run(30, Gauge(in_flight=7))
    for _ in range(30):
        seen.now += 1
        seen.see(answers=False)
        assert seen.decide(ready(2)).replicas == 2
    seen.run(1, Gauge(3, 1.2, 8))
    assert answer(seen.decide(ready(2))) == (3, Reason.QUEUE_AGE)


def test_after_its_own_restart_it_holds_until_one_full_window_was_seen() -> None:
    seen = world()
    replicas = [seen.run(1, Gauge(in_flight=1)).decide(ready(3)).replicas for _ in range(22)]
    assert replicas[:20] == [3] * 20 and replicas[-1] == 2


def test_growth_that_finds_no_node_is_returned_remembered_and_tried_again_later() -> None:
    seen = world().run(25, Gauge(9, 3.0, 4))
    stuck = Replicas(current=3, ready=1, pending=2, unschedulable=2, changed_at=T0, cold_start_s=5.0)
    memory = Memory()
    answers = []
    for _ in range(185):
        d = seen.run(1, Gauge(9, 3.0, 4)).decide(stuck, memory)
        memory = d.memory
        answers.append(answer(d))
        if d.replicas != 3:
            break
    assert answers[-1] == (1, Reason.UNSCHEDULABLE) and len(answers) == 181
    assert all(replicas == 3 for replicas, _ in answers[:-1])
    one = ready(1)
    held = seen.run(100, Gauge(9, 3.0, 4)).decide(one, memory)
    assert answer(held) == (1, Reason.UNSCHEDULABLE) and "had no node" in held.message
    again = seen.run(21, Gauge(9, 3.0, 4)).decide(one, held.memory)
    assert answer(again) == (2, Reason.QUEUE_AGE)
    assert again.memory.refused is not None and again.memory.refused.tries == 1
    grown = seen.run(1).decide(ready(2), again.memory)
    assert grown.memory.refused is None


def test_back_off_doubles_up_to_a_bound() -> None:
    stuck = Replicas(current=2, ready=1, pending=1, unschedulable=1)
    waits, refused = [], None
    for _ in range(7):
        seen = world().run(25)
        memory = Memory(unschedulable_since=seen.now - 500, refused=refused)
        refused = seen.decide(stuck, memory).memory.refused
        assert refused is not None
        waits.append(refused.until - seen.now)
    assert waits == [120, 240, 480, 960, 1800, 1800, 1800]


def test_a_pod_without_a_node_does_not_freeze_later_decisions() -> None:
    """After the growth was returned, less load still scales down, and none still scales to zero."""
    refused = Memory(refused=Refused(ceiling=2, until=T0 + 10_000))
    assert answer(world().run(25, Gauge(in_flight=1)).decide(ready(2), refused)) == (1, Reason.UNDERUSED)
    idle = world()
    idle.last_request = 500.0
    assert answer(idle.run(65).decide(ready(2), refused)) == (0, Reason.TO_ZERO)


def test_the_first_replica_is_not_given_up_while_a_request_waits_for_it() -> None:
    stuck = Replicas(current=1, ready=0, pending=1, unschedulable=1)
    seen = world()
    seen.engines = 0
    waits = seen.run(25, Gauge(1, 20.0)).decide(stuck, Memory(unschedulable_since=T0 - 500))
    assert waits.replicas == 1
    nobody = seen.run(1).decide(stuck, Memory(unschedulable_since=T0 - 500))
    assert answer(nobody) == (0, Reason.UNSCHEDULABLE)


@pytest.mark.parametrize(
    ("least", "most", "current", "expected"),
    [
        pytest.param(2, 8, 1, (2, Reason.MIN_REPLICAS), id="below"),
        pytest.param(6, 8, 0, (6, Reason.MIN_REPLICAS), id="far below, in one step"),
        pytest.param(0, 3, 5, (3, Reason.MAX_REPLICAS), id="above"),
        pytest.param(2, 2, 2, (2, Reason.STEADY), id="fixed"),
    ],
)
@pytest.mark.parametrize("blind", [False, True], ids=["seeing", "blind"])
def test_the_spec_s_bounds_hold_always(
    least: int, most: int, current: int, expected: tuple[int, Reason], blind: bool
) -> None:
    seen = world(min_replicas=least, max_replicas=most)
    if not blind:
        seen.run(25, Gauge(in_flight=16))
    got = answer(seen.decide(ready(current)))
    assert got == (expected if not blind or expected[1] is not Reason.STEADY else (expected[0], Reason.NO_DATA))


def test_a_clock_that_jumps_back_blocks_neither_way_for_ever() -> None:
    seen = world().run(25, Gauge(in_flight=1))
    memory = Memory(up_at=seen.now + 3600, down_at=seen.now + 3600)
    assert seen.run(1, Gauge(9, 3.0, 4)).decide(ready(1), memory).replicas == 2


# ---- words ----------------------------------------------------------------------------------------------------------


def test_the_decision_explains_itself_with_numbers() -> None:
    seen = world().run(25, Gauge(in_flight=4))
    seen.run(1, Gauge(9, 1.5, 4))
    d = seen.decide(ready(1))
    for text in ("1 → 2", "QueueAge", "interactive 1.50 s of 1 s", "9 queued and 4 in flight", "step: 4 → 2"):
        assert text in d.message
    status = d.as_status()
    assert status["from"] == 1 and status["to"] == 2 and status["at"] == "2023-11-14T22:13:46Z"
    listed = msgspec.to_builtins(status)["candidates"]
    assert [(c["name"], c.get("replicas")) for c in listed] == [
        ("floor", 0),
        ("forecast", None),
        ("queueAge", 4),
        ("goodput", None),
        ("fromZero", None),
        ("current", 1),
        ("room", None),
        ("down", None),
        ("toZero", None),
    ]
    encoded = msgspec.json.encode(status)
    assert b"." not in b"".join(encoded.split(b'"')[::2])  # no number has a fraction
    assert len(encoded) < 4000


def test_the_policy_is_read_from_the_objects() -> None:
    model = Model.model_validate(
        {
            "metadata": {"name": "chat", "namespace": "ns"},
            "spec": {
                "source": {"uri": "builtin://demo"},
                "engine": {"maxSequences": 2},
                "scaling": {
                    "mode": "Auto",
                    "minReplicas": 1,
                    "maxReplicas": 3,
                    "downAfter": "20s",
                    "toZeroAfter": "2m",
                },
            },
        }
    )
    slo = ServiceLevelObjective.model_validate(
        {
            "metadata": {"name": "slo", "namespace": "ns"},
            "spec": {
                "classes": [{"name": "a", "priority": 5, "ttft": "500ms", "tpot": "50ms", "maxQueueAge": "250ms"}]
            },
        }
    )
    made = Policy.of(model, slo)
    assert (made.min_replicas, made.max_replicas, made.max_sequences) == (1, 3, 2)
    assert (made.down_after_s, made.to_zero_after_s) == (20.0, 120.0)
    (read,) = made.classes
    assert read == ClassPolicy(
        name="a", priority=5, max_queue_age_s=0.25, ttft_s=0.5, objective_percent=99, tpot_s=0.05
    )
    assert [c.name for c in Policy.of(model, None).classes] == ["default"]
