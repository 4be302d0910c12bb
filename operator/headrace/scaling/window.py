"""What is remembered of one Model's samples: bounded, and enough to judge any span of time.

The newest samples are kept whole; of older ones only what decisions ask for: the peak of demand since any moment, since
when it is known without a hole, and the differences of the gateways' counters.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from operator import add, sub

import msgspec

from headrace.scaling.load import Load, LoadState, Seen
from headrace.scaling.profile import Answers
from headrace.scaling.types import Counters, Fault, FaultKind, GatewaySample, Policy, Sample

RECENT_S = 30.0
FLOW_S = 300.0
MOST_FLOWS = 600
MOST_PEAKS = 512
MOST_GATEWAYS = 256
BACK_S = 60.0  # after which counters that went back, without a restart, are believed
_NONE = Counters()
_NOTHING = msgspec.structs.astuple(_NONE)


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


class Flows:
    """What ended in any span up to now: running sums, so that a span is one difference. `add` in order of time."""

    def __init__(self, flows: Iterable[Flow] = ()):
        self._flows: deque[Flow] = deque()
        self._ends: list[float] = []  # of each sum; entries before `_first` are of forgotten flows
        self._sums: list[dict[str, tuple[int, ...]]] = [{}]  # the first is before all flows
        self._first = 0
        for flow in flows:
            self.add(flow)

    def add(self, flow: Flow) -> None:
        """Remember a flow; the oldest are forgotten after FLOW_S or where there are too many."""
        sums = dict(self._sums[-1])
        for name, counters in flow.classes.items():
            before, more = sums.get(name, _NOTHING), msgspec.structs.astuple(counters)
            sums[name] = tuple(map(add, before, more))
        self._flows.append(flow)
        self._ends.append(flow.at)
        self._sums.append(sums)
        self.forget(flow.at - FLOW_S)

    def forget(self, before: float) -> None:
        """Drop what ended before a moment."""
        while self._flows and (self._flows[0].at < before or len(self._flows) > MOST_FLOWS):
            self._flows.popleft()
            self._first += 1
        if self._first > MOST_FLOWS:
            del self._ends[: self._first], self._sums[: self._first]
            self._first = 0

    def since(self, at: float) -> dict[str, Counters]:
        """What ended after `at`, by class."""
        index = max(self._first, bisect_right(self._ends, at))
        if index >= len(self._ends):
            return {}
        first, last = self._sums[index], self._sums[-1]
        spans = {name: Counters(*map(sub, total, first.get(name, _NOTHING))) for name, total in last.items()}
        return {name: span for name, span in spans.items() if span != _NONE}

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows)


class Baseline(msgspec.Struct, frozen=True):
    """The last counters of one gateway that can be."""

    started_at: float
    counters: dict[str, Counters]
    back_since: float | None = None  # unix seconds, when some of them went back


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
        self._flows = Flows(state.flows)
        self._demand = Peaks(state.demand)
        self._flying: deque[int] = deque(s.in_flight for s in state.recent)  # of each recent sample
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
        sample, flow = self._count(sample)
        admitted = float(sum(counters.admitted for counters in flow.values()))
        left = admitted + sum(counters.shed for counters in flow.values())
        answers = [
            Answers(c.answered, c.prompt_tokens, c.cached_tokens, c.output_tokens, 1000.0 * c.attended_kilotokens)
            for c in flow.values()
        ]
        span = 0.0 if self.latest is None else sample.at - self.latest.at
        self.load.answers = self.load.answers.after(answers, min(span, self._hole_s))
        if sample.complete:
            engines = len(sample.engines)
            self.load.add(Seen(sample.at, left, admitted, engines, sample.in_flight, sample.queued))
        else:
            self.load.carry(left, admitted)
        self.first_at = sample.at if self.first_at is None else self.first_at
        flying = sample.in_flight
        self._demand.add(sample.at, flying + sample.queued)
        if sample.complete:
            if self.complete_at is None or sample.at - self.complete_at > self._hole_s:
                self.known_since = sample.at
            self.complete_at = sample.at
        self._recent.append(sample)
        self._flying.append(flying)
        while self._recent[0].at < sample.at - RECENT_S:
            self._recent.popleft()
            self._flying.popleft()

    def mean_demand(self, since: float) -> float:
        """Requests in flight and queued, on the mean over the recent samples at or after `since`; infinite without
        any."""
        seen = [flying + s.queued for s, flying in zip(self._recent, self._flying, strict=True) if s.at >= since]
        return sum(seen) / len(seen) if seen else math.inf

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
        return self._flows.since(since)

    def mean_in_flight(self) -> float:
        """Requests in flight, on the mean over the samples of the last half minute; 0 without any."""
        return sum(self._flying) / len(self._flying) if self._flying else 0.0

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
        self._flows = Flows()
        self._flying.clear()
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
            changes = self._changes(gateway)
            for name, change in changes.items():
                flow[name] = _plus(flow.get(name, Counters()), change)
            back = set(gateway.counters) - set(changes) if self._continues(gateway) else set()
            faults += [Fault(f"gateway {gateway.name}", f"{n}.counters", FaultKind.WENT_BACK) for n in sorted(back)]
            self._settle(gateway, back, sample.at)
        while len(self._baselines) > MOST_GATEWAYS:
            del self._baselines[next(iter(self._baselines))]
        if flow:
            self._flows.add(Flow(sample.at, flow))
        self._flows.forget(sample.at - FLOW_S)
        if faults:
            sample = msgspec.structs.replace(sample, faults=(*sample.faults, *faults))
        return sample, flow

    def _continues(self, gateway: GatewaySample) -> bool:
        """True where the counters go on from those known."""
        known = self._baselines.get(gateway.name)
        return known is not None and known.started_at == gateway.started_at

    def _settle(self, gateway: GatewaySample, back: set[str], now: float) -> None:
        """What the next sample is compared with. Counters that went back count for nothing, as they may recover; only
        if they stay there are they believed."""
        continues = self._continues(gateway)
        known = self._baselines.pop(gateway.name, None)  # the last seen come last
        kept = known.counters if known is not None and continues else {}
        since = (known.back_since if known is not None else None) or now if back else None
        if since is not None and now - since > BACK_S:
            back, since = set(), None
        counters = {name: c for name, c in gateway.counters.items() if name not in back}
        self._baselines[gateway.name] = Baseline(gateway.started_at, {**kept, **counters}, since)

    def _changes(self, gateway: GatewaySample) -> dict[str, Counters]:
        """What each class's counters have grown by; classes whose counters went back are left out."""
        known = self._baselines.get(gateway.name)
        if known is None:
            began_here = self.first_at is not None and gateway.started_at >= self.first_at
            return dict(gateway.counters) if began_here else {}
        if known.started_at != gateway.started_at:
            return dict(gateway.counters)
        changes = {}
        for name, counters in gateway.counters.items():
            change = _minus(counters, known.counters.get(name, Counters()))
            if min(msgspec.structs.astuple(change)) >= 0:
                changes[name] = change
        return changes


def _plus(a: Counters, b: Counters) -> Counters:
    return Counters(*(x + y for x, y in zip(msgspec.structs.astuple(a), msgspec.structs.astuple(b), strict=True)))


def _minus(a: Counters, b: Counters) -> Counters:
    return Counters(*(x - y for x, y in zip(msgspec.structs.astuple(a), msgspec.structs.astuple(b), strict=True)))
