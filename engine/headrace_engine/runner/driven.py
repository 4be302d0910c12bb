"""A scheduler with the fake runner, driven by hand: for tests and benchmarks."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import Pace
from headrace_engine.core.plan import Runner, StepPlan, StepResult
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv
from headrace_wire.protocol import Delta, Sampling, Submit


def prompt(length: int, seed: int = 1) -> list[int]:
    """Token ids; prompts of one seed share their beginning."""
    return [(seed * 31 + i * 7) % VOCAB for i in range(length)]


class Deferred:
    """A runner of any lag over one of lag 0: each step begins when it is collected."""

    def __init__(self, runner: Runner, lag: int):
        self.lag = lag
        self.kv = runner.kv
        self._runner = runner
        self._plans: deque[StepPlan] = deque()

    def launch(self, plan: StepPlan) -> None:
        """Keep the plan."""
        self._plans.append(plan)

    def collect(self) -> StepResult:
        """Run the oldest."""
        self._runner.launch(self._plans.popleft())
        return self._runner.collect()


class Driven:
    """A scheduler driven by hand, with everything it said. `runner`: another than the fake one, with its own pool."""

    def __init__(
        self,
        *,
        pages: int = 64,
        sequences: int = 8,
        budget: int = 256,
        context: int = 2048,
        lag: int = 0,
        runner: Runner | None = None,
        pace: Pace | None = None,
    ):
        self.runner: Runner = FakeRunner(lag, fake_kv(pages)) if runner is None else runner
        limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=context, vocab=VOCAB)
        self.scheduler = Scheduler(limits, BlockPool(self.runner.kv.pages), "00", pace)
        self.deltas: dict[str, list[Delta]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.plans: list[StepPlan] = []
        self.now = 0.0

    def submit(self, name: str, tokens: list[int], max_tokens: int = 4, **more: Any) -> None:
        self.prompts[name] = tokens
        more.setdefault("sampling", Sampling())
        submit = Submit(id=name, tokens=array("i", tokens).tobytes(), max_tokens=max_tokens, **more)
        self.take(self.scheduler.submit(submit, self.now))

    def step(self, count: int = 1) -> StepPlan | None:
        """`count` turns; the last plan."""
        plan = None
        for _ in range(count):
            plan = self.scheduler.plan()
            if plan is not None:
                self.plans.append(plan)
                self.runner.launch(plan)
            if self.scheduler.in_flight > (self.runner.lag if plan is not None else 0):
                self.take(self.scheduler.apply(self.runner.collect()))
        return plan

    def run(self, limit: int = 5000) -> None:
        """Until nothing is left."""
        for _ in range(limit):
            if not self.scheduler.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def take(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.deltas.setdefault(delta.id, []).append(delta)

    def output(self, name: str) -> list[int]:
        return [token for delta in self.deltas.get(name, []) for token in delta.tokens]

    def end(self, name: str) -> Delta:
        """The terminal Delta; there is exactly one, and it is the last."""
        ends = [delta for delta in self.deltas[name] if delta.finish or delta.error]
        assert len(ends) == 1
        assert self.deltas[name][-1] is ends[0]
        return ends[0]

    def running(self) -> list[str]:
        return [seq.id for seq in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [seq.id for seq in self.scheduler.waiting]
