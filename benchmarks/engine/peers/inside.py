"""Headrace's steps inside one process: plan, batch building, forward, sampling and applying; no HTTP.

    python -m benchmarks.engine.peers.inside MODEL [--threads N] [--profile]

Reads kinds of steps, one in a line ("decode 8", "prefill 512", "decode 15 + prefill 128"), and answers each with a line
of JSON: [kind, median ms, least ms, mean CPU ms]. With --profile it prints rows of (operation, share) per kind of step.
It is a process of its own because threads and their waiting are settled when torch is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from headrace_engine.config import EngineConfig
from headrace_engine.core import threads
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_wire.protocol import Sampling, Submit

if TYPE_CHECKING:
    from headrace_engine.runner.build import Engine

ROWS = 32  # of a step, at most
CONTEXT = 128  # tokens before the decode steps
STEPS = 48
WARM = 8  # steps that are not counted
REPEATS = 5  # of a prefill
TOP = 14  # operations of a profile


@dataclass(frozen=True)
class Took:
    """One step."""

    rows: int
    tokens: int  # computed in it
    ms: float
    cpu_ms: float


class Inside:
    """An engine without its processes."""

    def __init__(self, model: str, count: int):
        """`count`: threads; 0 for all CPUs allowed. They wait as those of a server do."""
        threads.set_policy(os.environ, threads.count(count), threads.allowed_cpus())
        from headrace_engine.runner.build import build

        config = EngineConfig(
            path=model,
            served_name="m",
            dtype="bfloat16",
            threads=count,
            max_sequences=ROWS,
            max_batch_tokens=2048,
            max_model_len=2560,
            kv_cache_bytes=1 << 30,
        )
        self.engine: Engine = build(config)
        self._limits = Limits(
            max_sequences=config.max_sequences,
            max_batch_tokens=config.max_batch_tokens,
            max_tokens=self.engine.model.max_tokens,
            vocab=self.engine.shape.vocab,
        )
        self._drawn = 0

    def scheduler(self) -> Scheduler:
        """A fresh one over the whole pool."""
        return Scheduler(self._limits, BlockPool(self.engine.runner.kv.pages), "00")

    def submit(self, scheduler: Scheduler, prompt: int, output: int) -> None:
        """A request of new tokens."""
        self._drawn += 1
        vocab = self.engine.shape.vocab - 3
        tokens = array("i", [3 + (self._drawn * 7919 + j * 104_729) % vocab for j in range(prompt)])
        sampling = Sampling(temperature=0.0)
        scheduler.submit(
            Submit(id=str(self._drawn), tokens=tokens.tobytes(), sampling=sampling, max_tokens=output), 0.0
        )

    def steps(self, scheduler: Scheduler) -> Iterator[Took]:
        """Until nothing is left to do."""
        runner = self.engine.runner
        while scheduler.busy:
            cpu, began = time.process_time(), time.perf_counter()
            plan = scheduler.plan()
            if plan is None:
                raise RuntimeError("the scheduler has work and plans none")
            runner.launch(plan)
            scheduler.apply(runner.collect())
            ms, cpu_ms = (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000
            yield Took(len(plan.steps), sum(step.count for step in plan.steps), ms, cpu_ms)


def decode(inside: Inside, rows: int) -> list[Took]:
    """Steps in which all rows decode."""
    scheduler = inside.scheduler()
    for _ in range(rows):
        inside.submit(scheduler, CONTEXT, STEPS + WARM)
    return [took for took in inside.steps(scheduler) if took.rows == took.tokens == rows][WARM:]


def prefill(inside: Inside, tokens: int) -> list[Took]:
    """Steps that compute one whole prompt."""
    found = []
    for _ in range(REPEATS):
        scheduler = inside.scheduler()
        inside.submit(scheduler, tokens, 1)
        found += [took for took in inside.steps(scheduler) if took.tokens == tokens]
    return found[1:]


def mixed(inside: Inside, rows: int, tokens: int) -> list[Took]:
    """Steps in which `rows` decode and one prompt of `tokens` is computed."""
    scheduler = inside.scheduler()
    for _ in range(rows):
        inside.submit(scheduler, CONTEXT, 4 * REPEATS)
    found = []
    arrivals = 0
    for took in inside.steps(scheduler):
        if took.tokens == rows + tokens and took.rows == rows + 1:
            found.append(took)
        if took.rows == took.tokens == rows and arrivals < REPEATS:
            inside.submit(scheduler, tokens, 1)
            arrivals += 1
    return found[1:]


def row(what: str, found: list[Took]) -> tuple[str, float, float, float]:
    """A line of the table."""
    ms = [took.ms for took in found] or [0.0]
    return what, round(median(ms), 2), round(min(ms), 2), round(mean(took.cpu_ms for took in found) if found else 0, 2)


def measure(inside: Inside, kind: str) -> tuple[str, float, float, float]:
    """Steps of one kind. Raises ValueError for a kind that there is not."""
    match kind.split():
        case ["decode", rows]:
            return row(kind, decode(inside, int(rows)))
        case ["prefill", tokens]:
            return row(kind, prefill(inside, int(tokens)))
        case ["decode", rows, "+", "prefill", tokens]:
            return row(kind, mixed(inside, int(rows), int(tokens)))
    raise ValueError(f"{kind!r} is no kind of step")


def profile(inside: Inside) -> dict[str, list[tuple[str, float]]]:
    """Share of the CPU time by operation, for a decode step, a prefill and a mixed step."""
    import torch.profiler as torch_profiler

    kinds: dict[str, Callable[[], list[Took]]] = {
        "decode 16": lambda: decode(inside, 16),
        "prefill 512": lambda: prefill(inside, 512),
        "decode 15 + prefill 128": lambda: mixed(inside, 15, 128),
    }
    result = {}
    for name, work in kinds.items():
        work()
        with torch_profiler.profile(activities=[torch_profiler.ProfilerActivity.CPU]) as recorded:
            work()
        events: list[Any] = list(recorded.key_averages())
        total = sum(event.self_cpu_time_total for event in events) or 1
        shares = sorted(((event.key, event.self_cpu_time_total / total) for event in events), key=lambda x: -x[1])
        result[name] = [(key, round(share, 4)) for key, share in shares[:TOP]]
    return result


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    inside = Inside(options.model, options.threads)
    if options.profile:
        json.dump(profile(inside), sys.stdout)
        return
    for line in sys.stdin:
        print(json.dumps(measure(inside, line.strip())), flush=True)


if __name__ == "__main__":
    main()
