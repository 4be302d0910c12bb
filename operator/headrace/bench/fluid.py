"""The fluid model: many fleets (lanes) under the same demand, one numpy operation for all of them.

Requests are a liquid in order of arrival. A lane's queue is one number: the position in the curve of arrived work up
to which work has been taken. A step first sheds what has waited longer than a request may (the gateway's deadline),
then takes as much as the ready replicas can serve within their TPOT target, then counts who is in flight: towards
the number that Little's law gives for this load, with the residence time as time constant. All that is taken is
good, all that is shed is not. Replicas cost from creation to removal; those that are removed are the pending ones
first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.bench.demand import Demand
from headrace.bench.profile import Capacity, Profile
from headrace.bench.trace import Floats, Ints

MIN_PATIENCE = 0.5  # of the TTFT target that a request may always wait, as in `headrace.admission.deadline`


@dataclass(frozen=True)
class Slo:
    """Targets of one class."""

    name: str
    ttft_s: float
    tpot_s: float
    objective: float = 0.95  # share of offered requests that must be good


@dataclass(frozen=True)
class Lane:
    """The setting of one fleet."""

    cold_start_s: float
    slo: Slo
    max_replicas: int
    start: int  # replicas that are ready at time 0
    min_replicas: int = 1


@dataclass
class Observed:
    """What can be seen after a step, shape (lanes,) each, as float."""

    now: float  # seconds, end of the step
    dt: float
    current: Floats  # replicas wanted
    ready: Floats
    in_flight: Floats  # requests dispatched
    queued: Floats  # requests not dispatched
    queued_tokens: Floats  # their prompt tokens
    oldest_s: Floats  # age of the oldest queued; 0 if none
    rho: Floats  # share of their time that ready replicas spend on tokens
    served: Floats  # requests taken in this step
    shed: Floats  # requests shed in this step
    count: float  # requests that arrived in this step
    work: float  # their work
    prompt: float  # their prompt tokens
    output: float  # their output tokens, known when they end
    mean_prompt: float  # tokens of the usual request
    mean_output: float

    @property
    def held_tokens(self) -> float:
        """KV tokens of the usual request, on the mean over its time."""
        return self.mean_prompt + self.mean_output / 2

    @property
    def pending(self) -> Floats:
        """Replicas wanted and not ready."""
        return np.maximum(0.0, self.current - self.ready)


@dataclass
class Tally:
    """What a lane has come to."""

    good: Floats
    shed: Floats
    replica_s: Floats
    actions: Floats  # changes of the number wanted
    bad_bins: list[Floats] = field(default_factory=list)  # shed share by bin of BIN_S


BIN_S = 10.0


class Fleets:
    """All lanes of one demand. `step` moves time on, `scale` sets the numbers of replicas."""

    def __init__(self, demand: Demand, profile: Profile, lanes: list[Lane]):
        self.demand, self.profile, self.lanes = demand, profile, lanes
        mix, count = demand.mix, len(lanes)
        capacities = [Capacity.of(profile, mix, lane.slo.tpot_s) for lane in lanes]
        self.rho_cap = np.array([c.rho for c in capacities])
        self.slots = np.array([float(c.slots) for c in capacities])
        wait = [max(la.slo.ttft_s - mix.prefill_s / (1 - c.rho) - c.step_s, la.slo.ttft_s * MIN_PATIENCE)
                for la, c in zip(lanes, capacities, strict=True)]  # fmt: skip
        self.patience = np.array(wait)
        self.cold = np.array([max(1, round(lane.cold_start_s / demand.dt)) for lane in lanes])
        self.least = np.array([float(lane.min_replicas) for lane in lanes])
        self.most = np.array([float(lane.max_replicas) for lane in lanes])
        self.current = np.array([float(lane.start) for lane in lanes])
        self.ready = self.current.copy()
        self._coming = np.zeros((count, int(self.cold.max()) + 2))  # ring by step: replicas that become ready
        self._position = np.zeros(count)
        self._kept = np.zeros(count)  # position from which the last step served
        self._in_flight = np.zeros(count)
        self._residence = mix.output * profile.step_seconds + mix.prefill_s
        self.index = 0
        zeros = np.zeros(count)
        self.tally = Tally(zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy())
        self._bin_shed = zeros.copy()
        self._bin_counted = 0.0

    @property
    def done(self) -> bool:
        """All of the demand has arrived."""
        return self.index >= self.demand.steps

    def step(self) -> Observed:
        """One step of time."""
        demand, dt = self.demand, self.demand.dt
        ring = self.index % self._coming.shape[1]
        self.ready += self._coming[:, ring]
        self._coming[:, ring] = 0.0
        begin, end = demand.times[self.index], demand.times[self.index + 1]
        edge = np.interp(np.maximum(begin - self.patience, 0.0), demand.times, demand.worked)
        counted = np.interp(self._position, demand.worked, demand.counted)
        kept = self._kept = np.maximum(self._position, edge)
        counted_kept = np.interp(kept, demand.worked, demand.counted)
        available = demand.worked[self.index + 1] - kept
        taken = np.minimum(available, self.ready * self.rho_cap * dt)
        self._position = kept + taken
        counted_end = np.interp(self._position, demand.worked, demand.counted)
        shed, served = counted_kept - counted, counted_end - counted_kept
        rho = np.divide(taken, self.ready * dt, out=np.zeros_like(taken), where=self.ready > 0)
        self._fly(served, rho)
        self._count(shed, served)
        self.index += 1
        return self._observe(end, rho, served, shed)

    def served_tokens(self) -> tuple[Floats, Floats, Floats]:
        """Of what was served in the last step, shape (lanes,) each: prompt tokens, output tokens, and tokens that
        prompt tokens attend to."""
        worked = self.demand.worked
        found = [np.interp(self._position, worked, s) - np.interp(self._kept, worked, s) for s in self.demand.told]
        return found[0], found[1], found[2]

    def _fly(self, served: Floats, rho: Floats) -> None:
        residence = self._residence / (1.0 - np.minimum(rho, 0.99))
        settled = served / self.demand.dt * residence
        pace = -np.expm1(-self.demand.dt / residence)
        self._in_flight += (settled - self._in_flight) * pace

    def _count(self, shed: Floats, served: Floats) -> None:
        tally, dt = self.tally, self.demand.dt
        tally.good += served
        tally.shed += shed
        tally.replica_s += np.maximum(self.current, self.ready) * dt
        self._bin_shed += shed
        self._bin_counted += self.demand.count[self.index]
        if ((self.index + 1) * dt) % BIN_S < dt:
            tally.bad_bins.append(self._bin_shed / max(self._bin_counted, 1e-9))
            self._bin_shed = np.zeros_like(shed)
            self._bin_counted = 0.0

    def _observe(self, end: float, rho: Floats, served: Floats, shed: Floats) -> Observed:
        demand, last = self.demand, self.index - 1
        queued = np.maximum(0.0, demand.counted[self.index] - np.interp(self._position, demand.worked, demand.counted))
        queued[queued < 1e-6] = 0.0
        oldest = np.where(queued > 0, end - np.interp(self._position, demand.worked, demand.times), 0.0)
        return Observed(
            now=end,
            dt=demand.dt,
            current=self.current.copy(),
            ready=self.ready.copy(),
            in_flight=self._in_flight.copy(),
            queued=queued,
            queued_tokens=queued * demand.mix.prompt,
            oldest_s=np.maximum(0.0, oldest),
            rho=rho,
            served=served,
            shed=shed,
            count=float(demand.count[last]),
            work=float(demand.work[last]),
            prompt=float(demand.prompt[last]),
            output=float(demand.output[last]),
            mean_prompt=demand.mix.prompt,
            mean_output=demand.mix.output,
        )

    def scale(self, wanted: Floats, lanes: Ints | None = None) -> None:
        """Set the number of replicas of all lanes (or of those given); bounded by each lane's limits."""
        index = np.arange(len(self.current)) if lanes is None else lanes
        bounded = np.clip(np.floor(wanted + 1e-9), self.least[index], self.most[index])
        changed = np.flatnonzero(bounded != self.current[index])
        for i in changed:
            self._change(int(index[i]), float(bounded[i]))

    def _change(self, lane: int, wanted: float) -> None:
        delta = wanted - self.current[lane]
        self.current[lane] = wanted
        self.tally.actions[lane] += 1
        size = self._coming.shape[1]
        if delta > 0:
            self._coming[lane, (self.index + int(self.cold[lane])) % size] += delta
            return
        for ahead in range(size - 1, -1, -1):  # the youngest pending ones go first
            slot = (self.index + ahead) % size
            gone = min(-delta, self._coming[lane, slot])
            self._coming[lane, slot] -= gone
            delta += gone
            if delta >= 0:
                return
        self.ready[lane] += delta

    def attainment(self) -> Floats:
        """Good of offered; what still waits at the end counts as good."""
        offered = self.tally.good + self.tally.shed
        return np.divide(self.tally.good, offered, out=np.ones_like(offered), where=offered > 0)

    def recovery_s(self) -> Floats:
        """The longest time in which every bin missed its objective."""
        objective = np.array([lane.slo.objective for lane in self.lanes])
        longest, running = np.zeros(len(objective)), np.zeros(len(objective))
        for shed in self.tally.bad_bins:
            running = np.where(1.0 - shed < objective, running + BIN_S, 0.0)
            longest = np.maximum(longest, running)
        return longest
