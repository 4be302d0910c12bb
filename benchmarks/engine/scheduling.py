"""Milliseconds that a decode step costs outside the model, by number of rows, with a fake runner.

plan: which tokens, with the adaptive budget, and the StepPlan that says so; apply: the result, and the Deltas; observe:
the step-time model; build: the runner's input tensors from the plan (needs torch; skipped where it is not there).

    python benchmarks/engine/scheduling.py [--rows 64,256,1024] [--cpu]

--cpu measures the processor's time instead of the wall's, for machines where others run too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

from headrace_engine.core import collector
from headrace_engine.core.budget import Pace
from headrace_engine.core.plan import StepPlan, StepResult
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import fake_kv
from headrace_wire.protocol import ModelInfo

PARTS = ("plan", "apply", "observe", "build")
Clock = Callable[[], float]


def decoding(rows: int, steps: int) -> Driven:
    """Every row decodes for `steps` more steps."""
    driven = Driven(pages=rows * 8, sequences=rows, budget=max(rows, 8192), context=1024)
    for i in range(rows):
        driven.submit(f"r{i}", prompt(100, seed=i), max_tokens=steps + 50, tpot_ms=100.0)
    while any(seq.want != 1 for seq in driven.scheduler.running) or driven.scheduler.waiting:
        driven.step()
    driven.scheduler.pace = Pace()  # from here on: before, it would let the first rows end ahead of the last
    return driven


def measure(rows: int, clock: Clock, steps: int = 150) -> dict[str, float]:
    """Median milliseconds of each part."""
    driven = decoding(rows, steps)
    pace = driven.scheduler.pace
    reporter = Reporter(Identity(ModelInfo(name="m"), fake_kv(1), "i"), None if pace is None else pace.times)
    build = _builder(driven)
    took: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(steps):
        began = clock()
        plan = driven.scheduler.plan()
        took["plan"].append(clock() - began)
        if plan is None:
            raise RuntimeError("nothing was planned")
        result = StepResult(number=plan.number, tokens={step.row: [1] for step in plan.steps})
        took["apply"].append(_timed(lambda: driven.scheduler.apply(result), clock))  # noqa: B023
        took["observe"].append(_timed(lambda: reporter.observe(plan, 0.01), clock))  # noqa: B023
        if build is not None:
            took["build"].append(_timed(lambda: build(plan), clock))  # noqa: B023
    return {part: median(values) * 1000 for part, values in took.items() if values}


def _timed(work: Callable[[], object], clock: Clock) -> float:
    began = clock()
    work()
    return clock() - began


def _builder(driven: Driven) -> Callable[[StepPlan], object] | None:
    """What makes a plan's tensors, for the rows that run now; None without torch."""
    try:
        from headrace_engine.runner.rows import Row, build
    except ImportError:
        return None
    rows: dict[int, Row] = {}
    for plan in driven.plans:
        rows |= {new.row: Row(new) for new in plan.new}

    def work(plan: StepPlan) -> object:
        for step in plan.steps:
            row = rows[step.row]
            if step.pages:
                row.append_pages(step.pages)
            while row.length < step.start + step.count:
                row.append_token(1)
        return build(plan.steps, rows)

    for plan in driven.plans:
        work(plan)
    return work


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,64,256,1024")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    collector.settle()
    print("| rows | " + " | ".join(f"{part}, ms" for part in PARTS) + " |\n|" + "---|" * (len(PARTS) + 1))
    for rows in (int(n) for n in options.rows.split(",")):
        found = measure(rows, clock)
        print(f"| {rows} | " + " | ".join(f"{found[p]:.3f}" if p in found else "–" for p in PARTS) + " |")


if __name__ == "__main__":
    main()
