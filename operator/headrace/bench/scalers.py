"""Autoscalers in the discrete simulator: production's, fed through gateway states; baselines; a constant."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState
from headrace.bench.baselines import Baseline
from headrace.bench.desk import report
from headrace.bench.fluid import Observed
from headrace.bench.profile import Mix
from headrace.bench.simulator import TICK_S, Simulation
from headrace.scaling.decide import decide
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import Decision, Memory, Policy, Replicas, Sample
from headrace.scaling.window import Window
from headrace_wire.protocol import Held

EPOCH = 1_700_000_000.0  # unix seconds of time 0
KEY = ("default", "bench")
UPTIME_S = 3600.0  # of the gateway at time 0


class Constant:
    """Always the same number."""

    def __init__(self, replicas: int):
        self.replicas = replicas

    def decide(self, simulation: Simulation, now: float) -> int:
        """The number."""
        return self.replicas


@dataclass(frozen=True)
class Scraping:
    """How the operator sees the gateway."""

    delay_s: float = 0.0  # age of what it reads
    gaps: tuple[tuple[float, float], ...] = ()  # from, to: no answer
    restarts: tuple[float, ...] = ()  # when the operator begins anew, without memory
    jumps: tuple[tuple[float, float], ...] = ()  # at, by: its clock is set

    def clock(self, now: float) -> float:
        """Unix seconds that the operator sees."""
        return EPOCH + now + sum(by for at, by in self.jumps if now >= at)


@dataclass
class Production:
    """`headrace.scaling` as the operator runs it."""

    policy: Policy
    scraping: Scraping = field(default_factory=Scraping)
    memory: Memory = field(default_factory=Memory)
    decisions: list[Decision] = field(default_factory=list)
    window: Window = field(init=False)
    _states: list[tuple[float, GatewayState]] = field(default_factory=list)
    _seq: int = 0

    def __post_init__(self) -> None:
        self.window = Window(self.policy)

    def decide(self, simulation: Simulation, now: float) -> int:
        """One tick of the operator's loop."""
        fleet, clock = simulation.fleet, self.scraping.clock(now)
        if any(now - TICK_S < at <= now for at in self.scraping.restarts):
            self.window, self.memory, self._states = Window(self.policy), Memory(), []
        self.window.add(self.sample(simulation, now))
        replicas = Replicas(
            current=fleet.wanted,
            ready=len(fleet.ready),
            pending=max(0, fleet.wanted - len(fleet.ready)),
            unschedulable=min(fleet.unplaced, max(0, fleet.wanted - len(fleet.ready))),
            terminating=len(fleet.draining),
            changed_at=self.scraping.clock(max(fleet.changed_at, -UPTIME_S)),
            cold_start_s=max(fleet.cold_starts[-20:], default=fleet.pods.cold_start_s),
        )
        decision = decide(self.policy, self.window, replicas, clock, self.memory)
        self.memory = decision.memory
        if decision.changes:
            self.decisions.append(decision)
        return decision.replicas

    def sample(self, simulation: Simulation, now: float) -> Sample:
        """What the operator sees now."""
        self._states.append((now, self._state(simulation, now)))
        while len(self._states) > 1 and self._states[1][0] <= now - self.scraping.delay_s:
            self._states.pop(0)
        silent = any(begin <= now < end for begin, end in self.scraping.gaps)
        state = None if silent else self._states[0][1]
        clock = self.scraping.clock(now)
        return merge([GatewayReport("gateway", clock, state)], clock, [KEY])[KEY]

    def _state(self, simulation: Simulation, now: float) -> GatewayState:
        self._seq += 1
        fleet, last = simulation.fleet, simulation.last_arrival
        serving = [*fleet.ready.values(), *fleet.draining.values()]
        model = ModelState(
            namespace=KEY[0],
            name=KEY[1],
            classes=[self._class(simulation, index, now) for index in range(len(simulation.setup.classes))],
            engines=[
                EngineReport(
                    pod=f"pod-{replica.serial}",
                    address="",
                    age_s=0.0,
                    in_flight=replica.requests,
                    state=report(replica, fleet.profile, Held(requests=replica.requests, pages=replica.pages), now),
                )
                for replica in serving
            ],
            last_request_age_s=None if last is None else now - last,
        )
        return GatewayState(
            gateway="gateway", started_at=EPOCH - UPTIME_S, uptime_s=UPTIME_S + now, seq=self._seq, models=[model]
        )

    def _class(self, simulation: Simulation, index: int, now: float) -> ClassState:
        service, counts, queue = simulation.setup.classes[index], simulation.counts[index], simulation.desk.queue
        return ClassState(
            name=service.name,
            queued=queue.queued(service.name),
            queued_tokens=queue.queued_tokens(service.name),
            oldest_age_s=queue.oldest_age(service.name, now),
            in_flight=counts.in_flight,
            outcomes=dict(counts.outcomes),
            offered=counts.offered,
            admitted=counts.admitted,
            offered_tokens=counts.offered_tokens,
            answered=counts.answered.copy(),
        )


@dataclass
class Foreign:
    """A baseline, fed with the same figures as on the fluid model."""

    rule: Baseline
    mix: Mix
    _before: tuple[int, int, int] = (0, 0, 0)  # admitted, ended by shedding, offered tokens

    def decide(self, simulation: Simulation, now: float) -> int:
        """One look."""
        wanted = self.rule.decide(self._observe(simulation, now))
        return simulation.fleet.wanted if wanted is None else max(1, int(wanted[0]))

    def _observe(self, simulation: Simulation, now: float) -> Observed:
        fleet, desk, counts = simulation.fleet, simulation.desk, simulation.counts
        admitted, shed = sum(c.admitted for c in counts), sum(c.outcomes.get("shed", 0) for c in counts)
        queued = len(desk.queue)
        arrived = admitted + shed + queued
        new = max(0, arrived - self._before[2])
        served = admitted - self._before[0]
        ages = [desk.queue.oldest_age(c.name, now) or 0.0 for c in simulation.setup.classes]
        seen = Observed(
            now=now,
            dt=1.0,
            current=_one(fleet.wanted),
            ready=_one(len(fleet.ready)),
            in_flight=_one(sum(c.in_flight for c in counts)),
            queued=_one(queued),
            queued_tokens=_one(sum(desk.queue.queued_tokens(c.name) for c in simulation.setup.classes)),
            oldest_s=_one(max(ages)),
            rho=_one(served * self.mix.work_s / max(1, len(fleet.ready))),
            served=_one(served),
            shed=_one(shed - self._before[1]),
            count=float(new),
            work=new * self.mix.work_s,
            prompt=new * self.mix.prompt,
            output=new * self.mix.output,
            mean_prompt=self.mix.prompt,
            mean_output=self.mix.output,
        )
        self._before = (admitted, shed, arrived)
        return seen


def _one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([float(value)])
