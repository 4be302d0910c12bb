"""Eight streams decode, a prompt of 2,000 tokens arrives: how long does a stream wait for a token, in medians?"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from statistics import median

from benchmarks.engine.budget.engines import PAGES, Timed
from benchmarks.engine.budget.workload import CONTEXT, VOCAB

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import Pace, work_of
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_wire.protocol import Sampling, Submit
from headrace_wire.reasons import Reason

STREAMS = 8
PROMPT = 2000  # tokens
BEFORE, AFTER = 80, 30  # steps of the streams alone


@dataclass(frozen=True)
class Gap:
    """Of one run; times in ms."""

    median: float  # between two tokens of a stream, over the whole run
    largest: float
    ttft: float  # of the prompt

    @property
    def ratio(self) -> float:
        """Largest gap in medians."""
        return self.largest / self.median


def measure(engine: Timed, pace: Pace | None, tokens: int, seed: int) -> tuple[Gap, Gap]:
    """By the processor's time and by the wall's. `tokens`: most of a step; the streams have no targets."""
    limits = Limits(max_sequences=STREAMS + 1, max_batch_tokens=tokens, max_tokens=2 * CONTEXT, vocab=VOCAB)
    scheduler = Scheduler(limits, BlockPool(PAGES), f"{seed:02x}", pace)
    for i in range(STREAMS):
        _submit(scheduler, f"s{i}", 64 + i, seed * 100 + i, 1000)
    cpu: list[float] = []
    wall: list[float] = []
    arrived, first = 0, 0
    while not first or len(cpu) < first + AFTER:
        if len(cpu) == BEFORE:
            arrived = len(cpu)
            _submit(scheduler, "long", PROMPT, seed * 100 + 99, 1)
        began = time.perf_counter()
        plan = scheduler.plan()
        if plan is None:
            raise RuntimeError("there is work and none is planned")
        result, took = engine.step(plan)
        deltas = scheduler.apply(result)
        if pace is not None:
            pace.times.observe(work_of(plan), took)
        cpu.append(took)
        wall.append(time.perf_counter() - began)
        if any(delta.id == "long" for delta in deltas):
            first = len(cpu)
    scheduler.abort_all(Reason.CANCELLED)
    return _gap(cpu, arrived, first), _gap(wall, arrived, first)


def _submit(scheduler: Scheduler, name: str, size: int, seed: int, output: int) -> None:
    tokens = array("i", [3 + (seed * 7919 + i * 104729) % (VOCAB - 3) for i in range(size)])
    sampling = Sampling(temperature=0.0)
    scheduler.submit(Submit(id=name, tokens=tokens.tobytes(), sampling=sampling, max_tokens=output), 0.0)


def _gap(steps: list[float], arrived: int, first: int) -> Gap:
    """Every stream gets a token in every step, so the gaps are the steps; those before all streams run are left out."""
    gaps = [1000 * took for took in steps[BEFORE // 2 :]]
    return Gap(median(gaps), max(gaps), 1000 * sum(steps[arrived:first]))
