"""After a step down a replica comes back for new load, and never for load that was over before it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from headrace.scaling import Decision, Memory, Policy, Reason, Replicas, decide
from headrace.scaling.capacity import Block, capacity
from headrace.scaling.rehearsal import Choice, Setting
from headrace.scaling.types import (
    ClassPolicy,
    ClassSample,
    Counters,
    EngineSample,
    Fault,
    FaultKind,
    GatewaySample,
    Sample,
)
from headrace.scaling.window import Window

T0 = 1_700_000_000.0
SLOTS, TAKES = 2, 8  # of a replica: requests at one time, and requests/s
COLD_S = 8.0
POLICY = Policy(
    min_replicas=0,
    max_replicas=2,
    max_sequences=SLOTS,
    down_after_s=20.0,
    to_zero_after_s=600.0,
    classes=(ClassPolicy(name="interactive", max_queue_age_s=1.0, ttft_s=3.0, objective_percent=95),),
)


@dataclass
class Service:
    """A small machine: while it works hard, engines report too late for whole samples."""

    policy: Policy = POLICY
    now: float = T0
    current: int = 1
    ready_at: float = T0 - 1000.0  # of the newest replica
    changed_at: float = T0 - 1000.0
    asked_at: float = T0
    choice: Choice | None = None  # instead of the one that is rehearsed
    memory: Memory = field(default_factory=Memory)
    counters: Counters = field(default_factory=Counters)
    changes: list[tuple[int, int, Reason]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = Window(self.policy)

    def run(self, seconds: int, load: int = 0, *, whole: bool = True) -> Service:
        """Offer so many requests a second, and act on the decisions; without `whole`, an engine's report is missing."""
        for _ in range(seconds):
            self.now += 1
            self.window.add(self._sample(load, whole))
            self._act(decide(self.policy, self.window, self._replicas(), self.now, self.memory))
        return self

    @property
    def ready(self) -> int:
        return self.current if self.now >= self.ready_at else self.current - 1

    def _replicas(self) -> Replicas:
        return Replicas(
            current=self.current, ready=self.ready, pending=self.current - self.ready, changed_at=self.changed_at,
            cold_start_s=COLD_S,
        )  # fmt: skip

    def _sample(self, load: int, whole: bool) -> Sample:
        served = min(load, TAKES * self.ready)
        self.asked_at = self.now if load else self.asked_at
        old = self.counters
        self.counters = Counters(
            good=old.good + (0 if load > served else served), offered=old.offered + served, ended=old.ended + served,
            admitted=old.admitted + served,
        )  # fmt: skip
        waits = min(load - served, 6)
        here = ClassSample(
            name="interactive", queued=waits, oldest_age_s=1.2 if waits else None,
            in_flight=min(load, SLOTS * self.ready),
        )  # fmt: skip
        return Sample(
            at=self.now,
            classes=(here,),
            gateways=(GatewaySample("g", 0.0, T0 - 9000, self.now - self.asked_at, {"interactive": self.counters}),),
            engines=tuple(EngineSample(pod=f"p{n}", age_s=0.0, running=0, waiting=0) for n in range(self.ready)),
            faults=() if whole else (Fault("engine p0", "report", FaultKind.STALE),),
        )

    def _act(self, decision: Decision) -> None:
        self.memory = decision.memory
        if self.choice is not None:
            self.memory = msgspec.structs.replace(self.memory, choice=self.choice, chosen_at=self.now)
        if decision.changes:
            self.changes.append((self.current, decision.replicas, decision.reason))
            self.changed_at = self.now
            if decision.replicas > self.current:
                self.ready_at = self.now + COLD_S
            self.current = decision.replicas


HELD = Choice(Setting(hold_s=1200.0), late=0.0)
UP, DOWN = (1, 2, Reason.QUEUE_AGE), (2, 1, Reason.UNDERUSED)


def after_a_burst() -> Service:
    """Two minutes of nothing, a burst of 97 s that is seen whole at its two ends only, nothing until the step down.

    The first half-minute of service ends shortly before the burst does, the second one after the step down.
    """
    service = Service().run(121)
    service.run(29, 17).run(59, 17, whole=False).run(9, 17)
    return service.run(21)


def test_what_is_learned_after_a_step_down_does_not_undo_it() -> None:
    service = after_a_burst()
    assert service.changes == [UP, DOWN]
    assert service.window.load.capacity(SLOTS).per_second is None, "the half-minute with the burst's end is not over"
    service.run(300)
    assert service.window.load.capacity(SLOTS).per_second is not None, "learned meanwhile, or nothing was shown"
    assert service.changes == [UP, DOWN]


def test_another_way_to_forecast_brings_no_replica_back_while_nobody_asks() -> None:
    """After the second burst a way that holds for longer would have been cheaper: chosen just after the step down."""
    service = Service().run(90).run(97, 17).run(200).run(30, 17)
    before = len(service.changes)
    service.run(250)
    assert service.changes[before:] == [DOWN]


@pytest.mark.parametrize("idle_s", [2, 8, 30, 120])
def test_new_load_brings_the_replica_back(idle_s: int) -> None:
    service = after_a_burst().run(idle_s)
    service.run(60, 17)
    assert [change[:2] for change in service.changes] == [(1, 2), (2, 1), (1, 2)]


def test_from_zero_one_request_wakes_one_replica_whatever_was_held() -> None:
    service = Service(msgspec.structs.replace(POLICY, to_zero_after_s=60.0), choice=HELD)
    service.run(120).run(97, 17)
    assert service.window.load.capacity(SLOTS).per_second is not None and service.current == 2
    service.run(70)
    assert service.changes[-1] == (2, 0, Reason.TO_ZERO)
    service.run(9, 1).run(30)
    assert service.changes[-1] == (0, 1, Reason.FROM_ZERO), "the one that is coming takes what waits"


BLOCK = Block(T0, 30.0, 30.0 * SLOTS, 240.0, 0.0, 30.0)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        pytest.param([], "0 of 200 requests were seen to learn from", id="nothing"),
        pytest.param([msgspec.structs.replace(BLOCK, admitted=12.0)] * 3, "36 of 200 requests", id="few requests"),
        pytest.param([BLOCK], "1 of 2 half-minutes of service were seen to learn from", id="one half-minute"),
        pytest.param(
            [msgspec.structs.replace(BLOCK, request_s=15.0)] * 9,
            "in no half-minute 40 % of a replica's slots were in use: at most 0.5 of 2",
            id="idle",
        ),
    ],
)
def test_what_is_missing_to_know_a_replica_is_named(blocks: list[Block], says: str) -> None:
    found = capacity(blocks, SLOTS)
    assert found.per_second is None and says in found.detail
