"""decide: one table of situations, the properties that hold in all of them, and a generated matrix of faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState
from headrace.api.model import Model
from headrace.api.slo import ServiceLevelObjective
from headrace.scaling import Decision, Memory, Policy, Reason, Replicas, decide
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import ClassPolicy, Refused
from headrace.scaling.window import Window
from headrace_wire.protocol import EngineState, ModelInfo

T0 = 1_700_000_000.0
KEY = ("ns", "chat")
SLOTS = 4
INTERACTIVE = ClassPolicy(name="interactive", priority=100, max_queue_age_s=1.0, ttft_s=2.0, objective_percent=95)
BATCH = ClassPolicy(name="batch", priority=10, max_queue_age_s=30.0, ttft_s=60.0, objective_percent=90)


def policy(**more: Any) -> Policy:
    defaults = {
        "min_replicas": 0,
        "max_replicas": 8,
        "max_sequences": SLOTS,
        "down_after_s": 20.0,
        "to_zero_after_s": 60.0,
        "classes": (INTERACTIVE, BATCH),
    }
    return Policy(**{**defaults, **more})


@dataclass
class Gauge:
    """What one gateway shows of one class at one second."""

    queued: Any = 0
    age: Any = None
    in_flight: Any = 0
    good: Any = 0
    offered: Any = 0
    admitted: Any = 0
    queued_tokens: Any = 0


@dataclass
class World:
    """Feeds a Window second by second, through the real `merge`."""

    policy: Policy
    now: float = T0
    uptime: Any = 100_000.0
    last_request: Any = None
    engines: int = 1
    engine: dict[str, Any] = field(default_factory=dict)
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.window = Window(self.policy)

    def state(self, gauges: dict[str, Gauge]) -> GatewayState:
        shown = [
            ClassState(
                name=name,
                queued=g.queued,
                queued_tokens=g.queued_tokens,
                oldest_age_s=g.age,
                in_flight=g.in_flight,
                outcomes={"good": g.good},
                offered=g.offered,
                admitted=g.admitted,
            )
            for name, g in gauges.items()
        ]
        engines = [
            EngineReport(
                pod=f"p{n}",
                address="x",
                age_s=self.engine.get("age_s", 0.2),
                state=EngineState(model=ModelInfo(name="m"), **{k: v for k, v in self.engine.items() if k != "age_s"}),
            )
            for n in range(self.engines)
        ]
        model = ModelState(
            namespace="ns",
            name="chat",
            classes=shown,
            engines=engines,
            last_request_age_s=self.last_request,
        )
        return GatewayState(gateway="gw", started_at=T0 - 50_000, uptime_s=self.uptime, models=[model])

    def see(self, interactive: Gauge | None = None, batch: Gauge | None = None, *, answers: bool = True) -> None:
        """One more sample, now."""
        gauges = {"interactive": interactive or Gauge(), "batch": batch or Gauge()}
        state = self.state(gauges) if answers else None
        self.window.add(merge([GatewayReport("gw", self.now, state)], self.now, [KEY])[KEY])

    def run(self, seconds: int, interactive: Gauge | None = None, batch: Gauge | None = None) -> World:
        """`seconds` more samples, one a second, that end now."""
        for _ in range(seconds):
            self.now += 1
            self.see(interactive, batch)
        return self

    def decide(self, replicas: Replicas, memory: Memory | None = None) -> Decision:
        return decide(self.policy, self.window, replicas, self.now, memory)


def ready(n: int, **more: Any) -> Replicas:
    return Replicas(**{"current": n, "ready": n, "changed_at": T0 - 1000, "cold_start_s": 10.0, **more})


def world(**more: Any) -> World:
    return World(policy(**more))


def answer(d: Decision) -> tuple[int, Reason]:
    assert d.winner in {c.name for c in d.candidates}
    return d.replicas, d.reason


# ---- up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gauge", "replicas", "expected"),
    [
        pytest.param(Gauge(in_flight=4), ready(1), (1, Reason.STEADY), id="full and nobody waits"),
        pytest.param(Gauge(2, 0.3, 4), ready(1), (1, Reason.STEADY), id="waits shorter than allowed"),
        pytest.param(Gauge(2, 1.1, 4), ready(1), (2, Reason.QUEUE_AGE), id="six requests need two times four slots"),
        pytest.param(Gauge(5, 1.1, 4), ready(1), (2, Reason.QUEUE_AGE), id="nine would need three, at most double"),
        pytest.param(Gauge(5, 1.1, 8), ready(2), (4, Reason.QUEUE_AGE), id="thirteen need four"),
        pytest.param(Gauge(9, 9.0, 4), ready(1, current=3, pending=2), (4, Reason.QUEUE_AGE), id="pending is supply"),
        pytest.param(Gauge(5, 9.0, 4), ready(1, current=3, pending=2), (3, Reason.STEADY), id="pending suffices"),
        pytest.param(Gauge(90, 9.0, 32), ready(8), (8, Reason.MAX_REPLICAS), id="at the most"),
        pytest.param(Gauge(90, 9.0, 28), ready(7), (8, Reason.QUEUE_AGE), id="up to the most"),
        pytest.param(Gauge(5, 9.0), ready(1, ready=0, pending=1), (1, Reason.STEADY), id="starting: four rounds"),
        pytest.param(
            Gauge(40, 9.0), ready(1, ready=0, pending=1), (2, Reason.QUEUE_AGE), id="starting: more than that"
        ),
    ],
)
def test_queue_age(gauge: Gauge, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    seen = world().run(25, Gauge(in_flight=4))
    seen.run(1, gauge)
    assert answer(seen.decide(replicas)) == expected


def test_an_age_that_grows_towards_its_bound_is_followed() -> None:
    seen = world().run(25, Gauge(in_flight=4))
    for age in (0.1, 0.25, 0.4, 0.55, 0.7):
        seen.run(1, Gauge(2, age, 4))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)
    steady = world().run(25, Gauge(2, 0.7, 4))
    assert answer(steady.decide(ready(1))) == (1, Reason.STEADY)


def test_a_low_class_that_may_wait_buys_nothing_and_counts_only_when_it_is_late() -> None:
    seen = world().run(25, Gauge(in_flight=4))
    seen.run(1, Gauge(in_flight=4), Gauge(queued=100, age=20.0))
    assert answer(seen.decide(ready(2))) == (2, Reason.STEADY)
    seen.run(1, Gauge(1, 1.5, 8), Gauge(queued=100, age=20.0))
    assert answer(seen.decide(ready(2))) == (3, Reason.QUEUE_AGE)  # nine requests, the hundred apart
    seen.run(1, Gauge(1, 1.5, 8), Gauge(queued=100, age=31.0))
    assert answer(seen.decide(ready(2))) == (4, Reason.QUEUE_AGE)


def test_requests_that_wait_inside_an_engine_count() -> None:
    seen = world()
    seen.engine = {"running": 4, "waiting": 4, "oldest_waiting_s": 2.0}
    seen.run(25, Gauge(in_flight=8))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)


def test_waiting_beside_free_slots_adds_one_only_when_it_lasts() -> None:
    seen = world().run(25, Gauge(in_flight=1))
    seen.run(2, Gauge(1, 1.5, 1))
    assert answer(seen.decide(ready(1))) == (1, Reason.STEADY)
    seen.run(5, Gauge(1, 3.5, 1))
    assert answer(seen.decide(ready(1))) == (2, Reason.QUEUE_AGE)
    assert seen.decide(ready(2, ready=1, pending=1)).replicas == 2


def test_a_replica_that_has_just_become_ready_is_not_taken_for_too_small() -> None:
    """From zero: the waiting request's age is a cold start's; it fits the slots as soon as there are any."""
    seen = world()
    seen.engines = 0
    seen.run(25, Gauge(1, 20.0))
    seen.engines = 1
    seen.run(1, Gauge(1, 21.0))
    assert answer(seen.decide(ready(1))) == (1, Reason.STEADY)


def test_steps_up_keep_a_short_distance() -> None:
    seen = world().run(25, Gauge(50, 9.0, 4))
    first = seen.decide(ready(1))
    assert first.replicas == 2
    seen.run(2, Gauge(50, 9.0, 4))
    held = seen.decide(ready(1, current=2, pending=1), first.memory)
    assert answer(held) == (2, Reason.COOLDOWN)
    seen.run(3, Gauge(50, 9.0, 4))
    assert answer(seen.decide(ready(1, current=2, pending=1), held.memory)) == (4, Reason.QUEUE_AGE)


@pytest.mark.parametrize(
    ("gauge", "expected"),
    [
        pytest.param(Gauge(1, 0.1), (1, Reason.FROM_ZERO), id="one waits"),
        pytest.param(Gauge(500, 0.1), (1, Reason.FROM_ZERO), id="many wait: one first"),
        pytest.param(Gauge(), (0, Reason.STEADY), id="nobody"),
        pytest.param(Gauge(math.nan), (0, Reason.INCOMPLETE), id="NaN is nobody knows"),
    ],
)
def test_from_zero(gauge: Gauge, expected: tuple[int, Reason]) -> None:
    seen = world()
    seen.engines = 0
    seen.run(25).run(1, gauge)
    assert answer(seen.decide(ready(0))) == expected


def test_from_zero_without_any_history_and_with_a_second_gateway_silent() -> None:
    seen = world()
    seen.engines = 0
    seen.now += 1
    state = seen.state({"interactive": Gauge(1, 0.2)})
    reports = [GatewayReport("a", seen.now, state), GatewayReport("b", seen.now, None)]
    seen.window.add(merge(reports, seen.now, [KEY])[KEY])
    assert answer(seen.decide(ready(0))) == (1, Reason.FROM_ZERO)


def served(n: int, good: int, in_flight: int) -> Gauge:
    return Gauge(in_flight=in_flight, good=good, offered=n, admitted=n)


def with_goodput(in_flight: int, good_percent: int = 50) -> World:
    seen = world()
    for n in range(70):
        seen.run(1, served(10 * n, n * good_percent // 10, in_flight))
    return seen


@pytest.mark.parametrize(
    ("in_flight", "good", "replicas", "expected"),
    [
        pytest.param(8, 50, ready(2), (3, Reason.GOODPUT), id="late in full batches"),
        pytest.param(8, 100, ready(2), (2, Reason.STEADY), id="full and good"),
        pytest.param(5, 50, ready(2), (2, Reason.STEADY), id="late in half-empty batches: more would not help"),
        pytest.param(8, 50, ready(2, changed_at=T0 + 40), (2, Reason.STEADY), id="the last change is young"),
        pytest.param(8, 50, ready(2, current=3, pending=1), (3, Reason.STEADY), id="one is on its way"),
        pytest.param(32, 0, ready(8), (8, Reason.MAX_REPLICAS), id="at the most"),
    ],
)
def test_goodput(in_flight: int, good: int, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    assert answer(with_goodput(in_flight, good).decide(replicas)) == expected


# ---- down -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "in_flight", "replicas", "expected"),
    [
        pytest.param(25, 3, ready(2), (1, Reason.UNDERUSED), id="three of four slots, 80 percent"),
        pytest.param(25, 4, ready(2), (2, Reason.STEADY), id="four of four slots"),
        pytest.param(15, 3, ready(2), (2, Reason.WARMING_UP), id="not for long enough"),
        pytest.param(25, 3, ready(2, cold_start_s=30.0), (2, Reason.STEADY), id="not as long as a cold start"),
        pytest.param(35, 3, ready(2, cold_start_s=30.0), (1, Reason.UNDERUSED), id="as long as a cold start"),
        pytest.param(25, 0, ready(8), (7, Reason.UNDERUSED), id="one step at a time"),
        pytest.param(25, 0, ready(1), (1, Reason.STEADY), id="the last one is toZero's"),
        pytest.param(
            25, 3, ready(1, current=2, pending=1, changed_at=T0 - 100), (2, Reason.STEADY), id="pending is no supply"
        ),
        pytest.param(25, 3, ready(2, changed_at=T0 + 10), (2, Reason.COOLDOWN), id="the last change is young"),
        pytest.param(25, 3, ready(2, changed_at=None), (1, Reason.UNDERUSED), id="nobody knows of a change"),
    ],
)
def test_down(seconds: int, in_flight: int, replicas: Replicas, expected: tuple[int, Reason]) -> None:
    assert answer(world().run(seconds, Gauge(in_flight=in_flight)).decide(replicas)) == expected


def test_the_peak_of_the_whole_span_counts_also_what_was_queued() -> None:
    seen = world().run(5, Gauge(in_flight=1)).run(1, Gauge(2, 0.1, 2)).run(18, Gauge(in_flight=1))
    assert seen.decide(ready(2)).replicas == 2
    assert seen.run(3, Gauge(in_flight=1)).decide(ready(2)).replicas == 1


@pytest.mark.parametrize("where", ["gateway", "engine"])
def test_whoever_waits_holds(where: str) -> None:
    seen = world().run(25)
    if where == "engine":
        seen.engine = {"waiting": 1, "oldest_waiting_s": 0.1}
    seen.run(1, Gauge(1, 0.1) if where == "gateway" else Gauge(in_flight=1))
    assert seen.decide(ready(2)).replicas == 2


def test_a_step_down_after_a_step_down_waits_less_than_after_a_step_up() -> None:
    seen = world().run(30, Gauge(in_flight=1))
    first = seen.decide(ready(4))
    assert first.replicas == 3
    seen.run(10, Gauge(in_flight=1))
    three = ready(3, changed_at=seen.now - 9)
    assert answer(seen.decide(three, first.memory)) == (3, Reason.COOLDOWN)
    seen.run(6, Gauge(in_flight=1))
    assert answer(seen.decide(three, first.memory)) == (2, Reason.UNDERUSED)
    assert answer(seen.decide(three, Memory(up_at=seen.now - 9))) == (3, Reason.COOLDOWN)


def test_late_requests_in_busy_batches_hold_and_in_idle_ones_do_not() -> None:
    busy = with_goodput(in_flight=6).decide(ready(3))
    assert answer(busy) == (3, Reason.STEADY)
    assert "goodput is" in next(c.detail for c in busy.candidates if c.name == "down")
    assert answer(with_goodput(2).decide(ready(3))) == (2, Reason.UNDERUSED)


def test_replicas_stuck_for_very_long_do_not_freeze_the_others() -> None:
    stuck = Replicas(current=3, ready=2, pending=1, changed_at=T0 - 1000, cold_start_s=10.0)
    assert answer(world().run(25, Gauge(in_flight=3)).decide(stuck)) == (2, Reason.UNDERUSED)
    crowded = world().run(25, Gauge(in_flight=7))
    assert crowded.decide(stuck).replicas == 3  # two serving replicas hold 6.4 at most


@pytest.mark.parametrize(
    ("last", "uptime", "seconds", "least", "expected"),
    [
        pytest.param(70.0, 1e5, 65, 0, (0, Reason.TO_ZERO), id="idle"),
        pytest.param(None, 1e5, 65, 0, (0, Reason.TO_ZERO), id="no request since the gateway's start"),
        pytest.param(None, 30.0, 65, 0, (1, Reason.STEADY), id="the gateway is too young to know"),
        pytest.param(50.0, 1e5, 65, 0, (1, Reason.STEADY), id="a request 50 s ago"),
        pytest.param(70.0, 1e5, 55, 0, (1, Reason.STEADY), id="not watched for long enough"),
        pytest.param(70.0, 1e5, 65, 1, (1, Reason.STEADY), id="minReplicas 1"),
        pytest.param(math.nan, 1e5, 65, 0, (1, Reason.INCOMPLETE), id="NaN"),
    ],
)
def test_to_zero(last: Any, uptime: float, seconds: int, least: int, expected: tuple[int, Reason]) -> None:
    seen = world(min_replicas=least)
    seen.last_request, seen.uptime = last, uptime
    assert answer(seen.run(seconds).decide(ready(1))) == expected


def test_every_gateway_has_to_prove_idleness() -> None:
    seen = world()
    for _ in range(65):
        seen.now += 1
        seen.last_request = 500.0
        idle = seen.state({})
        seen.last_request = 3.0
        used = msgspec.structs.replace(seen.state({}), gateway="b")
        reports = [GatewayReport("gw", seen.now, idle), GatewayReport("b", seen.now, used)]
        seen.window.add(merge(reports, seen.now, [KEY])[KEY])
    assert seen.decide(ready(1)).replicas == 1


def test_zero_is_reached_from_any_number_and_a_broken_replica_does_not_prevent_it() -> None:
    seen = world()
    seen.last_request = 500.0
    seen.run(65)
    assert seen.decide(ready(3)).replicas == 0
    assert seen.decide(Replicas(current=1, ready=0, pending=1, changed_at=T0)).replicas == 0


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
    assert made.classes == (ClassPolicy(name="a", priority=5, max_queue_age_s=0.25, ttft_s=0.5, objective_percent=99),)
    assert [c.name for c in Policy.of(model, None).classes] == ["default"]


# ---- properties -----------------------------------------------------------------------------------------------------

COUNT = st.one_of(st.integers(0, 60), st.sampled_from([math.nan, -3, 1e30, None]))
GAUGE = st.builds(
    Gauge,
    queued=COUNT,
    age=st.one_of(st.none(), st.floats(0, 40), st.sampled_from([math.nan, -1.0, 1e30])),
    in_flight=COUNT,
    good=COUNT,
    offered=COUNT,
)
REPLICAS = st.builds(
    Replicas,
    current=st.integers(0, 12),
    ready=st.integers(0, 12),
    pending=st.integers(0, 4),
    unschedulable=st.integers(0, 4),
    changed_at=st.one_of(st.none(), st.floats(T0 - 100, T0 + 200), st.sampled_from([math.nan, 0.0, -1.0, 1e300])),
    cold_start_s=st.one_of(st.none(), st.floats(0, 100), st.sampled_from([math.nan, -1.0, math.inf, 1e300])),
)
MEMORY = st.builds(
    Memory,
    unschedulable_since=st.one_of(st.none(), st.floats(T0 - 400, T0 + 100)),
    refused=st.one_of(st.none(), st.builds(Refused, ceiling=st.integers(0, 5), until=st.floats(T0 - 10, T0 + 500))),
    up_at=st.one_of(st.none(), st.floats(T0 - 50, T0 + 100)),
    down_at=st.one_of(st.none(), st.floats(T0 - 50, T0 + 100)),
)
HISTORY = st.lists(st.tuples(GAUGE, st.integers(1, 25), st.booleans()), max_size=5)
BOUNDS = st.tuples(st.integers(0, 4), st.integers(1, 9)).map(lambda b: (b[0], max(b)))


def replayed(history: list[tuple[Gauge, int, bool]], bounds: tuple[int, int], last: float | None) -> World:
    seen = world(min_replicas=bounds[0], max_replicas=bounds[1])
    seen.last_request = last
    for gauge, seconds, answers in history:
        for _ in range(seconds):
            seen.now += 1
            seen.see(gauge, answers=answers)
    return seen


LAST = st.sampled_from([None, 0.0, 30.0, 500.0])


@settings(max_examples=400, deadline=None)
@given(HISTORY, BOUNDS, LAST, REPLICAS, MEMORY)
def test_in_every_situation(
    history: list[tuple[Gauge, int, bool]],
    bounds: tuple[int, int],
    last: float | None,
    replicas: Replicas,
    memory: Memory,
) -> None:
    seen = replayed(history, bounds, last)
    d = seen.decide(replicas, memory)
    assert bounds[0] <= d.replicas <= bounds[1]
    assert d.winner in {c.name for c in d.candidates}
    assert d.replicas <= max(2 * replicas.current, 1, bounds[0])
    latest = seen.window.latest
    blind = latest is None or not latest.complete
    if blind:
        assert d.replicas >= min(replicas.current, bounds[1])
    if d.replicas == 0 and replicas.current > 0:
        assert d.reason in (Reason.TO_ZERO, Reason.UNSCHEDULABLE)
    if d.replicas < replicas.current and d.reason is Reason.UNDERUSED:
        assert d.replicas == replicas.current - 1 and latest is not None and latest.queued == 0
    assert str(d.replicas) in d.message and d.reason.value in d.message
    assert d == seen.decide(replicas, memory)
    assert len(msgspec.json.encode(d.as_status())) < 6000


@settings(max_examples=300, deadline=None)
@given(HISTORY, BOUNDS, st.integers(1, 40), st.integers(0, 40), st.floats(0, 40), st.floats(0, 40), REPLICAS, MEMORY)
def test_an_older_queue_never_asks_for_fewer(
    history: list[tuple[Gauge, int, bool]],
    bounds: tuple[int, int],
    queued: int,
    in_flight: int,
    first: float,
    second: float,
    replicas: Replicas,
    memory: Memory,
) -> None:
    answers = []
    for age in sorted((first, second)):
        seen = replayed(history, bounds, None)
        seen.run(1, Gauge(queued, age, in_flight))
        answers.append(seen.decide(replicas, memory).replicas)
    assert answers[0] <= answers[1]


# ---- the fault matrix -----------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {"missing": None, "NaN": math.nan, "zero": 0, "huge": 1e300, "negative": -5}


def _set(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: setattr(g, name, v)


def _engine(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: w.engine.__setitem__(name, v)


def _world(name: str) -> Callable[[World, Any, Gauge], None]:
    return lambda w, v, g: setattr(w, name, v)


INPUTS: dict[str, Callable[[World, Any, Gauge], None]] = {
    **{name: _set(name) for name in ("queued", "age", "in_flight", "good", "offered", "admitted", "queued_tokens")},
    **{f"engine.{name}": _engine(name) for name in ("running", "waiting", "oldest_waiting_s", "age_s")},
    "uptime": _world("uptime"),
    "last_request": _world("last_request"),
}
# Three replicas are needed: 7 in flight, or 1 queued, or 7 running. Only a plain, believable zero may say otherwise.
NEEDED = {
    "by gateway": (Gauge(in_flight=7, good=700, offered=700), {}),
    "by queue": (Gauge(queued=1, age=0.4, in_flight=1, good=700, offered=700), {}),
    "by engine": (
        Gauge(in_flight=6, good=700, offered=700),
        {"running": 7, "waiting": 1, "oldest_waiting_s": 0.4},
    ),
}


@pytest.mark.parametrize("kind", [*VALUES, "stale", "duplicated"])
@pytest.mark.parametrize("name", list(INPUTS))
@pytest.mark.parametrize("need", list(NEEDED))
def test_no_fault_of_an_input_scales_down_what_is_needed(need: str, name: str, kind: str) -> None:
    gauge, engine = NEEDED[need]
    seen = world()
    seen.engine, seen.last_request = dict(engine), 0.5
    seen.run(60, gauge)
    broken = msgspec.json.decode(msgspec.json.encode(gauge.__dict__))
    faulty = Gauge(**broken)
    reasons = set()
    for _ in range(10):
        seen.now += 1
        if kind not in ("stale", "duplicated"):
            INPUTS[name](seen, VALUES[kind], faulty)
        state = seen.state({"interactive": faulty, "batch": Gauge()})
        report = GatewayReport("gw", seen.now - (60 if kind == "stale" else 0), state)
        copies = [report] * (3 if kind == "duplicated" else 1)
        seen.window.add(merge(copies, seen.now, [KEY])[KEY])
        d = seen.decide(ready(3))
        empty_now = (need, name, kind) == ("by queue", "queued", "zero")  # the queue has simply been served
        assert d.replicas >= 3 or empty_now, d.message
        reasons.add(d.reason)
    believable = kind in ("zero", "duplicated") or (name, kind) in {
        ("last_request", "missing"),
        ("age", "missing"),
        ("engine.oldest_waiting_s", "missing"),
        ("uptime", "zero"),
    }
    idle_age = name in ("age", "engine.oldest_waiting_s") and reasons == {Reason.STEADY}
    if not believable and not idle_age:
        assert reasons <= {Reason.INCOMPLETE, Reason.STALE, Reason.NO_DATA}, (name, kind, reasons)


@pytest.mark.parametrize(
    ("name", "value"),
    list(itertools.product(("cold_start_s", "changed_at"), (math.nan, math.inf, -1.0, 1e300)))
    + list(itertools.product(("ready", "pending", "unschedulable", "terminating"), (-1, 10**9))),
)
def test_no_fault_of_a_replica_s_figure_scales_down(name: str, value: Any) -> None:
    seen = world()
    seen.last_request = 500.0
    seen.run(100)
    d = seen.decide(ready(3, **{name: value}))
    assert answer(d) == (3, Reason.INCOMPLETE) and name.removesuffix("_s").replace("_", " ")[:5] in d.message


def test_traffic_that_falls_to_zero_is_no_missing_data() -> None:
    """Nothing offered makes goodput unknown, and every latency undefined; fewer replicas follow all the same."""
    seen = world(min_replicas=1)
    for n in range(70):
        seen.run(1, served(10 * n, 10 * n, 7))
    seen.run(70, served(690, 690, 0))
    d = seen.decide(ready(3))
    assert answer(d) == (2, Reason.UNDERUSED) and d.inputs["interactive.goodputPercent"] is None
