"""Milliseconds of the scheduler per decode step, without a model, by number of rows.

python benchmarks/engine/scheduling.py [--rows 64,256,1024]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from headrace_engine.core.plan import StepResult
from headrace_engine.runner.driven import Driven, prompt


def measure(rows: int, steps: int = 150) -> tuple[float, float]:
    """Median milliseconds of planning and of applying a result, with every row decoding."""
    driven = Driven(pages=rows * 8, sequences=rows, budget=max(rows, 8192), context=1024)
    for i in range(rows):
        driven.submit(f"r{i}", prompt(100, seed=i), max_tokens=steps + 50)
    while any(seq.want != 1 for seq in driven.scheduler.running) or driven.scheduler.waiting:
        driven.step()
    planning, applying = [], []
    for _ in range(steps):
        began = time.perf_counter()
        plan = driven.scheduler.plan()
        planned = time.perf_counter()
        if plan is None:
            raise RuntimeError("nothing was planned")
        result = StepResult(number=plan.number, tokens={step.row: [1] for step in plan.steps})
        ready = time.perf_counter()
        driven.scheduler.apply(result)
        planning.append((planned - began) * 1000)
        applying.append((time.perf_counter() - ready) * 1000)
    return median(planning), median(applying)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,64,256,1024")
    print("| rows | plan, ms | apply, ms |\n|---|---|---|")
    for rows in (int(n) for n in parser.parse_args().rows.split(",")):
        plan, apply = measure(rows)
        print(f"| {rows} | {plan:.3f} | {apply:.3f} |")


if __name__ == "__main__":
    main()
