"""The production controller on the fluid model: the same `decide`, fed with Samples as gateways' states give them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.bench.fluid import Fleets, Lane, Observed
from headrace.bench.profile import Profile
from headrace.bench.trace import Floats
from headrace.scaling.decide import decide
from headrace.scaling.types import (
    ClassPolicy,
    ClassSample,
    Counters,
    Decision,
    EngineSample,
    GatewaySample,
    Memory,
    Policy,
    Replicas,
    Sample,
)
from headrace.scaling.window import Window

Told = tuple[Floats, Floats, Floats]
"""Prompt tokens, output tokens, and tokens that prompt tokens attend to, by lane."""

EPOCH = 1_700_000_000.0  # unix seconds of time 0
CLASS = "default"
NAME = "headrace"
LONG_AGO_S = 3600.0  # before time 0 the fleet had its size


def policy_of(lane: Lane, slots: int, dt: float) -> Policy:
    """What a Model with this lane's service level would give. Nothing in it depends on the demand."""
    return Policy(
        min_replicas=lane.min_replicas,
        max_replicas=lane.max_replicas,
        max_sequences=slots,
        down_after_s=300.0,
        to_zero_after_s=600.0,
        stale_after_s=max(5.0, 2 * dt),
        classes=(
            ClassPolicy(
                name=CLASS,
                max_queue_age_s=lane.slo.ttft_s / 2,
                ttft_s=lane.slo.ttft_s,
                objective_percent=round(lane.slo.objective * 100),
                tpot_s=lane.slo.tpot_s,
            ),
        ),
    )


@dataclass
class Controller:
    """The controller of one lane. `decide` is called after each step of the fluid model."""

    lane: int
    policy: Policy
    profile: Profile
    window: Window = field(init=False)
    memory: Memory = field(default_factory=Memory)
    changed_at: float = EPOCH - LONG_AGO_S
    last: Decision | None = None
    _current: float | None = None
    _good: float = 0.0
    _ended: float = 0.0
    _shed: float = 0.0
    _admitted: float = 0.0
    _told: tuple[float, ...] = (0.0, 0.0, 0.0)  # prompt and output tokens served, and tokens attended to

    def __post_init__(self) -> None:
        self.window = Window(self.policy)
        self._step_times = self.profile.step_times

    def decide(self, seen: Observed, told: Told, cold_start_s: float) -> int:
        """The number of replicas wanted now. `told`: the tokens of what was served in the last step."""
        self._told = tuple(a + float(b[self.lane]) for a, b in zip(self._told, told, strict=True))
        now = EPOCH + seen.now
        current = int(seen.current[self.lane])
        if self._current is not None and current != self._current:
            self.changed_at = now
        self._current = current
        self.window.add(self._sample(seen, now))
        ready = int(seen.ready[self.lane])
        replicas = Replicas(
            current=current,
            ready=ready,
            pending=max(0, current - ready),
            changed_at=self.changed_at,
            cold_start_s=cold_start_s,
        )
        self.last = decide(self.policy, self.window, replicas, now, self.memory)
        self.memory = self.last.memory
        return self.last.replicas

    def _sample(self, seen: Observed, now: float) -> Sample:
        lane = self.lane
        queued = math.floor(seen.queued[lane])
        in_flight = round(float(seen.in_flight[lane]))
        served, shed = float(seen.served[lane]), float(seen.shed[lane])
        self._good += served
        self._shed += shed
        self._ended += served + shed
        self._admitted += served
        prompt, output, attended = self._told
        counters = Counters(
            good=int(self._good),
            offered=int(self._ended),
            shed=int(self._shed),
            ended=int(self._ended),
            admitted=int(self._admitted),
            offered_tokens=int(prompt + output),
            answered=int(self._good),
            prompt_tokens=int(prompt),
            output_tokens=int(output),
            attended_kilotokens=int(attended / 1000),
        )
        return Sample(
            at=now,
            classes=(
                ClassSample(
                    name=CLASS,
                    queued=queued,
                    queued_tokens=int(seen.queued_tokens[lane]),
                    oldest_age_s=float(seen.oldest_s[lane]) if queued else None,
                    in_flight=in_flight,
                ),
            ),
            gateways=(GatewaySample("gateway", 0.0, EPOCH - LONG_AGO_S, 0.0, {CLASS: counters}),),
            engines=self._engines(seen, in_flight),
        )

    def _engines(self, seen: Observed, in_flight: int) -> tuple[EngineSample, ...]:
        ready = int(seen.ready[self.lane])
        if ready <= 0:
            return ()
        total = self.profile.kv_tokens // self.profile.page_tokens
        used = min(total, int(in_flight * seen.held_tokens / ready / self.profile.page_tokens))
        each, rest = divmod(in_flight, ready)
        return tuple(
            EngineSample(
                pod=f"pod-{i}",
                age_s=0.0,
                running=each + (i < rest),
                waiting=0,
                total_pages=total,
                free_pages=total - used,
                page_tokens=self.profile.page_tokens,
                step_times=self._step_times,
            )
            for i in range(ready)
        )


def run(fleets: Fleets) -> None:
    """Replay the whole demand with one controller for each lane."""
    controllers = [
        Controller(i, policy_of(lane, int(fleets.slots[i]), fleets.demand.dt), fleets.profile)
        for i, lane in enumerate(fleets.lanes)
    ]
    wanted = fleets.current.copy()
    while not fleets.done:
        seen, told = fleets.step(), fleets.served_tokens()
        for controller, lane in zip(controllers, fleets.lanes, strict=True):
            wanted[controller.lane] = controller.decide(seen, told, lane.cold_start_s)
        fleets.scale(wanted)
