"""One workload under one policy: the engine's scheduler against arrivals, in the engine's own time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.engine.budget.engines import PAGES, Engine
from benchmarks.engine.budget.policies import SEQUENCES, Policy
from benchmarks.engine.budget.workload import CONTEXT, VOCAB, Request, Workload

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import work_of
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_wire.protocol import Delta, Sampling, Submit


@dataclass(frozen=True)
class Targets:
    """What makes a request good."""

    ttft_s: float
    tpot_s: float  # its own mean


@dataclass
class Record:
    """What became of a request; s of the engine's time."""

    at: float
    times: list[float] = field(default_factory=list)  # of its tokens
    cached: int = 0

    @property
    def ttft(self) -> float:
        """Arrival to first token."""
        return self.times[0] - self.at

    @property
    def gaps(self) -> list[float]:
        """Between tokens."""
        return [b - a for a, b in pairwise(self.times)]

    def good(self, targets: Targets) -> bool:
        """Were both targets met?"""
        gaps = self.gaps
        return self.ttft <= targets.ttft_s and (not gaps or sum(gaps) / len(gaps) <= targets.tpot_s)

    def smooth(self, targets: Targets) -> bool:
        """Was no gap longer than twice the target between tokens?"""
        return max(self.gaps, default=0.0) <= 2 * targets.tpot_s


@dataclass(frozen=True)
class Step:
    """One step."""

    end: float  # s
    took: float  # s
    used: float  # share of the pool's pages


@dataclass
class Outcome:
    """A replay."""

    records: dict[str, Record] = field(default_factory=dict)
    end: float = 0.0  # s
    steps: list[Step] = field(default_factory=list)
    preemptions: int = 0


class Replay:
    """Steps follow each other in the engine's time; idle time is skipped."""

    def __init__(self, workload: Workload, policy: Policy, engine: Engine, targets: Targets):
        limits = Limits(max_sequences=SEQUENCES, max_batch_tokens=policy.tokens, max_tokens=CONTEXT, vocab=VOCAB)
        self._scheduler = Scheduler(limits, BlockPool(PAGES), "00", policy.pace())
        self._policy = policy
        self._engine = engine
        self._targets = targets
        self._coming = deque(workload.requests)
        self._now = 0.0
        self._outcome = Outcome()

    @property
    def now(self) -> float:
        """Its own time, s."""
        return self._now

    @property
    def over(self) -> bool:
        """Have all ended?"""
        return not (self._coming or self._scheduler.busy)

    @property
    def outcome(self) -> Outcome:
        """So far."""
        self._outcome.end = self._now
        self._outcome.preemptions = self._scheduler.preemptions
        return self._outcome

    def run(self) -> Outcome:
        """Until all have ended."""
        while not self.over:
            self.advance()
        return self.outcome

    def advance(self) -> None:
        """One step, or to the next arrival where there is nothing to do."""
        self._arrive()
        if self._scheduler.busy:
            self._step()
        else:
            self._now = max(self._now, self._coming[0].at)

    def _arrive(self) -> None:
        """Those that have arrived; a static batch takes so many as run at a time, and none while one runs."""
        room = len(self._coming)
        if self._policy.static:
            room = 0 if self._scheduler.busy else SEQUENCES
        while self._coming and room > 0 and self._coming[0].at <= self._now:
            self._submit(self._coming.popleft())
            room -= 1

    def _submit(self, request: Request) -> None:
        self._outcome.records[request.name] = Record(request.at)
        submit = Submit(
            id=request.name,
            tokens=request.tokens,
            sampling=Sampling(temperature=0.0),
            max_tokens=request.output,
            tpot_ms=1000 * self._targets.tpot_s if self._policy.targets else None,
        )
        self._take(self._scheduler.submit(submit, self._now))

    def _step(self) -> None:
        plan = self._scheduler.plan()
        if plan is None:
            raise RuntimeError("there is work and none is planned")
        result, took = self._engine.step(plan)
        self._now += took
        if self._scheduler.pace is not None:
            self._scheduler.pace.times.observe(work_of(plan), took)
        pool = self._scheduler.pool
        self._outcome.steps.append(Step(self._now, took, pool.used / pool.total))
        self._take(self._scheduler.apply(result))

    def _take(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if delta.error is not None:
                raise RuntimeError(f"{delta.id}: {delta.error.value}")
            record = self._outcome.records[delta.id]
            record.times += [self._now] * len(delta.tokens)
            record.cached = max(record.cached, delta.cached)


def together(replays: Iterable[Replay]) -> None:
    """Run several to their ends, always a step of the one whose time is the least: what else the machine does while
    they run then hits all of them alike, at the same moments of their time.
    """
    left = list(replays)
    while left:
        one = min(left, key=lambda replay: replay.now)
        one.advance()
        if one.over:
            left.remove(one)
