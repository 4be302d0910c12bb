"""The closed loop in virtual time: load → gateway → samples → decisions → replicas → load.

A small simulation: requests with a fixed service time, replicas with slots and a cold start, one gateway queue, one
decision a second from what the gateway reports. Everything is recorded, and every recording replays to itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState
from headrace.scaling import Decision, Memory, Policy, Reason, Replicas, decide
from headrace.scaling.record import Recorder, replay
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import ClassPolicy
from headrace.scaling.window import Window
from headrace_wire.protocol import EngineState, ModelInfo

KEY = ("ns", "chat")
T0 = 1_700_000_000.0
STEP = 0.1
Rate = Callable[[float], float]  # seconds since the start -> requests per second


@dataclass
class Pod:
    born: float
    ready_at: float
    busy: list[tuple[float, bool]] = field(default_factory=list)  # of each running request: its end, is it in time


@dataclass
class Sim:
    """One Model. `rooms`: pods that find a node; more stay without one."""

    policy: Policy
    rate: Rate
    replicas: int = 1
    cold_start: float = 8.0
    service: float = 2.0
    rooms: int = 99
    silent: Callable[[float], bool] = lambda t: False  # the gateway does not answer
    now: float = 0.0
    pods: list[Pod] = field(default_factory=list)
    queue: deque[float] = field(default_factory=deque)  # arrival times
    good: int = 0
    ended: int = 0
    admitted: int = 0
    waits: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = [Pod(-100.0, -100.0) for _ in range(self.replicas)]
        self.recorder = Recorder(self.lines.append)
        self.last_request: float | None = None
        self.changed_at: float | None = None
        self._due = 0.0
        self.restart()

    def restart(self) -> None:
        """The operator starts anew: nothing is remembered."""
        self.window, self.memory = Window(self.policy), Memory()
        self.recorder.window(KEY, self.policy, self.window)

    def run(self, seconds: float) -> Sim:
        """Let time pass."""
        for n in range(1, round(seconds / STEP) + 1):
            self.now = round(self.now + STEP, 6)
            self._serve()
            if n % round(1 / STEP) == 0:
                self._decide()
        return self

    def serving(self) -> list[Pod]:
        return [p for p in self.pods if p.ready_at <= self.now]

    def _serve(self) -> None:
        self._due += self.rate(self.now) * STEP
        while self._due >= 1:
            self._due -= 1
            self.queue.append(self.now)
            self.last_request = self.now
        for pod in self.pods:
            self._end([run for run in pod.busy if run[0] <= self.now])
            pod.busy = [run for run in pod.busy if run[0] > self.now]
        for pod in sorted(self.serving(), key=lambda p: len(p.busy)):
            while self.queue and len(pod.busy) < self.policy.max_sequences:
                wait = self.now - self.queue.popleft()
                self.waits.append(wait)
                self.admitted += 1
                pod.busy.append((self.now + self.service, wait <= self.policy.classes[0].ttft_s))

    def _end(self, runs: list[tuple[float, bool]]) -> None:
        self.ended += len(runs)
        self.good += sum(in_time for _, in_time in runs)

    def _report(self) -> GatewayReport:
        flying = sum(len(p.busy) for p in self.pods)
        shown = ClassState(
            name="default",
            queued=len(self.queue),
            oldest_age_s=self.now - self.queue[0] if self.queue else None,
            in_flight=flying,
            outcomes={"good": self.good, "late": self.ended - self.good},
            offered=self.ended,
            admitted=self.admitted,
        )
        engines = [
            EngineReport(
                pod=f"p{p.born}",
                address="x",
                age_s=0.2,
                state=EngineState(model=ModelInfo(name="m"), running=len(p.busy)),
            )
            for p in self.serving()
        ]
        last = None if self.last_request is None else self.now - self.last_request
        model = ModelState(namespace="ns", name="chat", classes=[shown], engines=engines, last_request_age_s=last)
        state = GatewayState(gateway="gw", started_at=T0 - 5000, uptime_s=5000 + self.now, models=[model])
        return GatewayReport("gw", T0 + self.now, None if self.silent(self.now) else state)

    def _decide(self) -> None:
        at = T0 + self.now
        sample = merge([self._report()], at, [KEY])[KEY]
        self.window.add(sample)
        self.recorder.sample(KEY, sample)
        placed = [p for p in self.pods if p.ready_at < float("inf")]
        seen = Replicas(
            current=len(self.pods),
            ready=len(self.serving()),
            pending=len(self.pods) - len(self.serving()),
            unschedulable=len(self.pods) - len(placed),
            changed_at=self.changed_at,
            cold_start_s=self.cold_start,
        )
        d = decide(self.policy, self.window, seen, at, self.memory)
        self.recorder.decision(KEY, self.policy, seen, self.memory, d)
        self.memory = d.memory
        self.decisions.append(d)
        self._apply(d.replicas)

    def _apply(self, wanted: int) -> None:
        if wanted != len(self.pods):
            self.changed_at = T0 + self.now
        while len(self.pods) < wanted:
            placed = sum(p.ready_at < float("inf") for p in self.pods) < self.rooms
            self.pods.append(Pod(self.now, self.now + self.cold_start if placed else float("inf")))
        while len(self.pods) > wanted:  # Kubernetes removes those first that are not ready
            victim = max(self.pods, key=lambda p: (p.ready_at, -len(p.busy)))
            self._end(victim.busy)  # they drain
            self.pods.remove(victim)

    def counts(self) -> list[int]:
        """The numbers of replicas that were asked for, without repetition."""
        asked = [d.replicas for d in self.decisions]
        return [n for i, n in enumerate(asked) if i == 0 or asked[i - 1] != n]

    def check(self) -> None:
        """Whatever happened, it stays within the bounds and replays."""
        assert all(self.policy.min_replicas <= d.replicas <= self.policy.max_replicas for d in self.decisions)
        replayed = replay(self.lines)
        assert replayed.differences == () and replayed.decisions == len(self.decisions)


def policy(least: int, most: int, **more: float) -> Policy:
    return Policy(
        min_replicas=least,
        max_replicas=most,
        max_sequences=2,
        down_after_s=more.get("down_after_s", 20.0),
        to_zero_after_s=more.get("to_zero_after_s", 30.0),
        classes=(ClassPolicy(name="default", max_queue_age_s=1.0, ttft_s=2.0, objective_percent=95),),
    )


def between(begin: float, end: float, rate: float, otherwise: float = 0.0) -> Rate:
    return lambda t: rate if begin <= t < end else otherwise


def test_a_burst_takes_one_to_two_and_back_to_one() -> None:
    sim = Sim(policy(1, 2), between(30, 90, 1.6))  # one replica holds 1.0 a second, two hold 2.0
    sim.run(200)
    sim.check()
    assert sim.counts() == [1, 2, 1]
    up = next(d for d in sim.decisions if d.replicas == 2)
    down = next(d for d in sim.decisions if d.replicas < d.current)
    assert (up.reason, down.reason) == (Reason.QUEUE_AGE, Reason.UNDERUSED)
    assert 30 < up.at - T0 < 45
    assert 90 + 20 <= down.at - T0 < 90 + 20 + 20
    assert sim.ended + sum(len(p.busy) for p in sim.pods) == 96 and not sim.queue


def test_steady_load_below_the_slots_changes_nothing() -> None:
    sim = Sim(policy(1, 8), lambda t: 0.5).run(600)
    sim.check()
    assert sim.counts() == [1]


def test_steady_load_that_needs_three_finds_three_and_stays() -> None:
    sim = Sim(policy(1, 8), lambda t: 2.6).run(900)
    sim.check()
    assert 3 <= sim.decisions[-1].replicas <= 4
    tail = {d.replicas for d in sim.decisions[400:]}
    assert len(tail) <= 2 and sum(d.changes for d in sim.decisions[400:]) <= 2


def test_zero_one_zero_one_and_the_second_cold_request_is_served_like_the_first() -> None:
    def twice(t: float) -> float:
        return 10.0 if 20 <= t < 20.1 or 150 <= t < 150.1 else 0.0

    sim = Sim(policy(0, 2), twice, replicas=0)
    sim.run(260)
    sim.check()
    assert sim.counts() == [0, 1, 0, 1, 0]
    assert len(sim.waits) == 2 and all(8 <= wait <= 10 for wait in sim.waits)
    changes = [d for d in sim.decisions if d.changes]
    assert [d.reason for d in changes] == [Reason.FROM_ZERO, Reason.TO_ZERO] * 2
    assert all(d.at - T0 <= at + 1.2 for d, at in zip(changes[::2], (20, 150), strict=True))


def test_a_request_that_arrives_as_one_goes_to_zero_is_served() -> None:
    """The decision to go to zero falls at a fixed second; a request arrives just before, at, and just after it."""
    quiet = Sim(policy(0, 2), between(5, 5.1, 10.0)).run(60)
    moment = next(d.at - T0 for d in quiet.decisions if d.replicas == 0)
    for offset in (-0.9, -0.1, 0.0, 0.1, 0.9):
        at = moment + offset
        sim = Sim(policy(0, 2), lambda t, at=at: 10.0 if 5 <= t < 5.1 or at <= t < at + STEP - 0.01 else 0.0)  # type: ignore[misc]
        sim.run(120)
        sim.check()
        assert len(sim.waits) == 2 and not sim.queue, offset


def test_a_pod_pending_for_ever_freezes_nothing_and_its_growth_is_returned() -> None:
    sim = Sim(policy(0, 4), between(10, 400, 1.6), rooms=1)
    sim.run(700)
    sim.check()
    returned = [d for d in sim.decisions if d.changes and d.reason is Reason.UNSCHEDULABLE]
    assert returned and all(d.replicas == 1 for d in returned)
    assert 180 <= returned[0].at - T0 - 10 <= 200
    after = [d for d in sim.decisions if d.at > returned[0].at]
    quiet = [d for d in after if d.at - returned[0].at < 119]
    assert {d.replicas for d in quiet} == {1}  # not asked for again at once
    assert sim.decisions[-1].replicas == 0  # and, once idle, down to zero


def test_a_metric_gap_in_a_surge_scales_nothing_down_and_growth_resumes() -> None:
    sim = Sim(policy(1, 4), between(20, 120, 3.0), silent=lambda t: 30 <= t < 60)
    sim.run(110)
    sim.check()
    in_gap = [d for d in sim.decisions if 36 <= d.at - T0 < 60]
    assert {d.reason for d in in_gap} == {Reason.STALE} and len({d.replicas for d in in_gap}) == 1
    assert sim.decisions[-1].replicas == 4


def test_an_operator_that_restarts_in_a_surge_scales_nothing_down() -> None:
    sim = Sim(policy(1, 4), between(20, 80, 3.0))
    sim.run(50)
    before = sim.decisions[-1].replicas
    sim.restart()
    sim.run(25)
    assert all(d.replicas >= before for d in sim.decisions[50:])
    sim.run(120)
    sim.check()
    assert sim.decisions[-1].replicas == 1


@pytest.mark.parametrize("cold_starts", [0.5, 1, 2, 4])
def test_a_square_wave_causes_no_more_changes_than_it_has_edges(cold_starts: float) -> None:
    period = cold_starts * 8.0
    sim = Sim(policy(1, 4), lambda t: 3.0 if (t % period) < period / 2 else 0.2)
    sim.run(400)
    sim.check()
    tail = [d for d in sim.decisions if d.at - T0 > 100 and d.changes]
    edges = 2 * 300 / period
    assert len(tail) <= edges
