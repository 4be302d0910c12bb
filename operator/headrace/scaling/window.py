"""What is remembered of one Model's samples: bounded, and enough to judge any span of time.

The newest samples are kept whole; of older ones only what decisions ask for: the peak of demand since any moment, since
when it is known without a hole, and the differences of the gateways' counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from headrace.scaling.load import Load, LoadState, Seen
from headrace.scaling.types import Counters, Fault, FaultKind, GatewaySample, Policy, Sample

RECENT_S = 30.0
FLOW_S = 300.0
MOST_FLOWS = 600
MOST_PEAKS = 512
MOST_GATEWAYS = 256


class Peaks:
    """The largest value since any moment, exact: entries in order of time whose values only fall."""

    def __init__(self, entries: Iterable[tuple[float, int]] = ()):
        self._entries: deque[tuple[float, int]] = deque(entries)

    def add(self, at: float, value: int) -> None:
        """Note a value."""
        while self._entries and self._entries[-1][1] <= value:
            self._entries.pop()
        self._entries.append((at, value))
        if len(self._entries) > MOST_PEAKS:  # the two oldest become one, of the later time and the larger value
            (_, larger), (later, _) = self._entries.popleft(), self._entries.popleft()
            self._entries.appendleft((later, larger))

    def since(self, at: float) -> int:
        """The largest value at or after `at`; 0 if there was none."""
        return next((value for when, value in self._entries if when >= at), 0)

    def entries(self) -> tuple[tuple[float, int], ...]:
        """For storing."""
        return tuple(self._entries)


class Flow(msgspec.Struct, frozen=True):
    """What ended between one sample and the one before, by class."""

    at: float
    classes: dict[str, Counters]


class Baseline(msgspec.Struct, frozen=True):
    """The last counters of one gateway."""

    started_at: float
    counters: dict[str, Counters]


class WindowState(msgspec.Struct, frozen=True, kw_only=True):
    """A Window as data."""

    first_at: float | None = None
    known_since: float | None = None
    complete_at: float | None = None
    recent: tuple[Sample, ...] = ()
    flows: tuple[Flow, ...] = ()
    demand: tuple[tuple[float, int], ...] = ()
    baselines: dict[str, Baseline] = {}
    load: LoadState = LoadState()


class Window:
    """The history of one Model. `add` each sample, in order of time."""

    def __init__(self, policy: Policy, state: WindowState | None = None):
        state = state or WindowState()
        self._hole_s = policy.stale_after_s
        self.first_at = state.first_at  # of the first sample
        self.known_since = state.known_since  # whole samples without a hole from then on
        self.complete_at = state.complete_at  # of the last whole sample
        self._recent: deque[Sample] = deque(state.recent)
        self._flows: deque[Flow] = deque(state.flows, maxlen=MOST_FLOWS)
        self._demand = Peaks(state.demand)
        self._baselines = dict(state.baselines)
        self.load = Load(state.load)

    @property
    def latest(self) -> Sample | None:
        """The newest sample."""
        return self._recent[-1] if self._recent else None

    @property
    def recent(self) -> tuple[Sample, ...]:
        """The samples of the last half minute, oldest first."""
        return tuple(self._recent)

    def resize(self, policy: Policy) -> None:
        """Take over a changed policy."""
        self._hole_s = policy.stale_after_s

    def add(self, sample: Sample) -> None:
        """Remember a sample. One that is older than the newest means a clock that jumped: all is forgotten first."""
        if self.latest is not None and sample.at < self.latest.at:
            self._forget()
        queued_before = 0 if self.latest is None else self.latest.queued
        sample, flow = self._count(sample)
        self.load.add(_seen(sample, flow, sample.queued - queued_before))
        self.first_at = sample.at if self.first_at is None else self.first_at
        self._demand.add(sample.at, sample.in_flight + sample.queued)
        if sample.complete:
            if self.complete_at is None or sample.at - self.complete_at > self._hole_s:
                self.known_since = sample.at
            self.complete_at = sample.at
        self._recent.append(sample)
        while self._recent[0].at < sample.at - RECENT_S:
            self._recent.popleft()

    def known_for(self, now: float) -> float:
        """Seconds up to now that are known without a hole; 0 if the last whole sample is too old."""
        if self.known_since is None or self.complete_at is None or not 0 <= now - self.complete_at <= self._hole_s:
            return 0.0
        return now - self.known_since

    def peak_demand(self, since: float) -> int:
        """Most requests in flight and queued at one time."""
        return self._demand.since(since)

    def flow(self, since: float) -> dict[str, Counters]:
        """What ended after `since`, by class."""
        total: dict[str, Counters] = {}
        for flow in self._flows:
            if flow.at > since:
                for name, counters in flow.classes.items():
                    total[name] = _plus(total.get(name, Counters()), counters)
        return total

    def state(self) -> WindowState:
        """For storing and replaying."""
        return WindowState(
            first_at=self.first_at,
            known_since=self.known_since,
            complete_at=self.complete_at,
            recent=tuple(self._recent),
            flows=tuple(self._flows),
            demand=self._demand.entries(),
            baselines=dict(self._baselines),
            load=self.load.state(),
        )

    def _forget(self) -> None:
        self.first_at = self.known_since = self.complete_at = None
        self._recent.clear()
        self._flows.clear()
        self._demand = Peaks()
        self._baselines.clear()
        self.load = Load()

    def _count(self, sample: Sample) -> tuple[Sample, dict[str, Counters]]:
        """Turn counters into a flow, by class; a counter that went back is a Fault of the sample."""
        flow: dict[str, Counters] = {}
        faults: list[Fault] = []
        for gateway in sample.gateways:
            if gateway.started_at <= 0:  # unknown, so a restart could not be told from a counter
                continue
            for name, change in self._changes(gateway, faults).items():
                flow[name] = _plus(flow.get(name, Counters()), change)
            known = self._baselines.pop(gateway.name, None)  # the last seen come last
            kept = known.counters if known is not None and known.started_at == gateway.started_at else {}
            self._baselines[gateway.name] = Baseline(gateway.started_at, {**kept, **gateway.counters})
        while len(self._baselines) > MOST_GATEWAYS:
            del self._baselines[next(iter(self._baselines))]
        if flow:
            self._flows.append(Flow(sample.at, flow))
        while self._flows and self._flows[0].at < sample.at - FLOW_S:
            self._flows.popleft()
        if faults:
            sample = msgspec.structs.replace(sample, faults=(*sample.faults, *faults))
        return sample, flow

    def _changes(self, gateway: GatewaySample, faults: list[Fault]) -> dict[str, Counters]:
        known = self._baselines.get(gateway.name)
        if known is None:
            began_here = self.first_at is not None and gateway.started_at >= self.first_at
            return dict(gateway.counters) if began_here else {}
        if known.started_at != gateway.started_at:
            return dict(gateway.counters)
        changes = {}
        for name, counters in gateway.counters.items():
            change = _minus(counters, known.counters.get(name, Counters()))
            if min(msgspec.structs.astuple(change)) < 0:
                faults.append(Fault(f"gateway {gateway.name}", f"{name}.counters", FaultKind.WENT_BACK))
            else:
                changes[name] = change
        return changes


def _seen(sample: Sample, flow: dict[str, Counters], grown: int) -> Seen:
    """What arrived began, was shed or waits. How fast replicas serve is read from whole samples alone."""
    admitted = sum(counters.admitted for counters in flow.values())
    arrived = max(0, admitted + sum(counters.shed for counters in flow.values()) + grown)
    if not sample.complete:
        return Seen(sample.at, arrived, 0.0, 0, 0, 0)
    return Seen(sample.at, arrived, admitted, len(sample.engines), sample.in_flight, sample.queued)


def _plus(a: Counters, b: Counters) -> Counters:
    return Counters(*(x + y for x, y in zip(msgspec.structs.astuple(a), msgspec.structs.astuple(b), strict=True)))


def _minus(a: Counters, b: Counters) -> Counters:
    return Counters(*(x - y for x, y in zip(msgspec.structs.astuple(a), msgspec.structs.astuple(b), strict=True)))
