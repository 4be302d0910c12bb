"""What a step takes, measured before the first request: a few steps of made-up sequences through the real runner.

They are what the fitted step times (`budget`) begin with; each kind of step weighs as much as a handful of own ones, so
service soon outweighs it. Sequences grow from small to large, and what would not fit into the time left is not tried:
a slow machine knows less at the start, and learns the rest from its own steps. Nothing but the runner is touched: the
pages are those that nobody has been given yet, and no block of theirs is published.
"""

from __future__ import annotations

import logging
import math
import statistics
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from headrace_engine.core.budget import StepTimes, StepWork, work_of
from headrace_engine.core.plan import NewRow, RowStep, Runner, StepPlan
from headrace_engine.core.scheduler import Limits
from headrace_engine.core.sequence import pages_for
from headrace_wire.protocol import Sampling

log = logging.getLogger(__name__)

SECONDS = 2.0  # for all of it, and as much again for the first steps, which build what is built once
TIMES = 3  # that each step is taken; its median counts
LONG_S = 0.05  # from where it is taken once
SIZES = (1, 4, 16, 64, 256)  # sequences that decode together
CHUNKS = (32, 128, 512, 2048)  # tokens of a prompt
SHORT = 2  # tokens of the prompts of sequences that only decode
WARM = 8  # tokens of the first prompt, which is not counted
GROWTH = 5.0  # times what the next size takes at most


@dataclass
class Probe:
    """Makes plans by hand, with negative numbers: the scheduler counts its steps and rows upward."""

    runner: Runner
    limits: Limits
    clock: Callable[[], float]  # seconds
    seconds: float = SECONDS
    rows: dict[int, int] = field(default_factory=dict)  # that the runner knows, with their tokens so far
    found: list[tuple[StepWork, float]] = field(default_factory=list)
    _number: int = 0
    _row: int = 0
    _page: int = 0  # the last one given to a row
    _began: float = 0.0

    def measure(self) -> list[tuple[StepWork, float]]:
        """Steps and their seconds, as many as fit into the time and the pool. `rows` are left in the runner."""
        self._began = self.clock()
        if not self._room(1, WARM + 1) or self.limits.max_batch_tokens < WARM:
            return []
        if not self._built():
            return []
        self._began = self.clock()
        _, prompt = self._prompts(1, WARM)  # seconds of the last step with a prompt
        _, decode = self._step()  # and of the last size's
        for size, chunk in zip_longest(SIZES, CHUNKS, fillvalue=0):
            if chunk and chunk <= self.limits.max_batch_tokens and self._fits(GROWTH * prompt):
                prompt = self._prompt(chunk)
            if size and size <= self.limits.max_sequences and self._fits(GROWTH * decode):
                decode = self._decode(size)
        return self.found

    def _built(self) -> bool:
        """The first steps take several times what later ones do, and would pass for steps of a slow machine: they are
        taken apart, and tell nothing. False where they take too long even so.
        """
        self._prompts(1, WARM)
        if not self._fits(0.0):
            return False
        self._step()
        return self._fits(0.0)

    def _fits(self, seconds: float) -> bool:
        return self.clock() - self._began + seconds <= self.seconds

    def _decode(self, size: int) -> float:
        """So many sequences decode, with hardly any context."""
        if not self._room(size, SHORT + 2 * TIMES) or size * SHORT > self.limits.max_batch_tokens:
            return math.inf
        self._prompts(size, SHORT)
        return self._repeat(self._step)

    def _prompt(self, chunk: int) -> float:
        """A prompt in one step, then what a sequence of its length takes to decode."""
        if not self._room(1, chunk + TIMES):
            return math.inf
        took = self._repeat(lambda: self._prompts(1, chunk))
        self._repeat(self._step)
        return took

    def _room(self, count: int, tokens: int) -> bool:
        return tokens <= self.limits.max_tokens and count * pages_for(tokens) <= self.runner.kv.pages

    def _repeat(self, step: Callable[[], tuple[StepWork, float]]) -> float:
        """The usual seconds of a step; noted as often as it was taken."""
        taken = [step()]
        while len(taken) < TIMES and taken[0][1] < LONG_S and self._fits(taken[0][1]):
            taken.append(step())
        usual = statistics.median(seconds for _, seconds in taken)
        self.found += [(work, usual) for work, _ in taken]
        return usual

    def _prompts(self, count: int, tokens: int) -> tuple[StepWork, float]:
        """Forget all rows, and compute the prompts of new ones in one step."""
        drop, self.rows, self._page = list(self.rows), {}, 0
        new = [self._new(tokens) for _ in range(count)]
        steps = [RowStep(row=row.row, start=0, count=tokens, sample=True) for row in new]
        self.rows = {row.row: tokens for row in new}
        return self._run(new, steps, drop)

    def _new(self, tokens: int) -> NewRow:
        self._row -= 1
        need = pages_for(tokens + 2 * TIMES)
        pages = list(range(self._page + 1, self._page + 1 + need))
        self._page += need
        ids = array("i", ((13 + 7919 * i - 31 * self._row) % self.limits.vocab for i in range(tokens)))
        return NewRow(row=self._row, tokens=ids.tobytes(), prompt=tokens, pages=pages, sampling=Sampling())

    def _step(self) -> tuple[StepWork, float]:
        """All rows decode a token."""
        steps = [RowStep(row=row, start=known, count=1, sample=True) for row, known in self.rows.items()]
        self.rows = {row: known + 1 for row, known in self.rows.items()}
        return self._run([], steps, [])

    def _run(self, new: list[NewRow], steps: list[RowStep], drop: list[int]) -> tuple[StepWork, float]:
        self._number -= 1
        plan = StepPlan(number=self._number, new=new, steps=steps, drop=drop)
        self.runner.launch(plan)
        result = self.runner.collect()
        if result.failed:
            raise RuntimeError(f"rows failed: {sorted(reason.value for reason in result.failed.values())[0]}")
        return work_of(plan), result.ms / 1000.0


def measure(runner: Runner, limits: Limits, times: StepTimes, clock: Callable[[], float]) -> list[int]:
    """Teach `times` what steps take. Gives the rows that the runner still knows: its next plan is to drop them.

    A step that fails ends the measurement, and nothing of it counts: what is wrong will be told by the first request.
    """
    probe = Probe(runner, limits, clock)
    try:
        for work, seconds in probe.measure():
            times.observe(work, seconds)
    except Exception:
        log.exception("steps could not be measured")
    return list(probe.rows)
