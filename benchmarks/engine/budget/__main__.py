"""The adaptive token budget against fixed ones and against static batches, on recorded arrivals.

    PYTHONPATH=operator:engine python -m benchmarks.engine.budget [--requests 200] [--rounds 2] [--only gap] [--out DIR]

Replays two workloads (conversation, retrieval) through the engine's own scheduler, cache and runner with a small random
model; arrivals are scaled to what this machine takes. Time is the processor's: one thread, idle time skipped. All
policies run side by side, a step in turn. A sweep over loads follows with a step-time model fitted to these steps.
Last, a prompt of 2,000 tokens arrives beside eight streams. Each part writes a section, its plots and its numbers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

PARTS = ("conversation", "retrieval", "gap")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        "budget", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given more than once")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded

    from benchmarks.engine.budget import campaign, policies, report, workload
    from benchmarks.engine.budget.engines import Timed, real_runner

    parts = options.only or PARTS
    options.out.mkdir(parents=True, exist_ok=True)
    made = {"conversation": workload.conversation, "retrieval": workload.retrieval}
    with tempfile.TemporaryDirectory() as folder:
        runners = [real_runner(Path(folder)) for _ in policies.POLICIES]
    for part in parts:
        if part == "gap":
            found = campaign.gaps(Timed(runners[0]), 2 * options.rounds + 1, _say)
            report.write_gap(options.out, found)
            print(report.gap_table(found), flush=True)
            continue
        engines = {p.name: Timed(runner) for p, runner in zip(policies.POLICIES, runners, strict=True)}
        trial = campaign.Trial(made[part](options.requests))
        campaign.calibrate(trial, next(iter(engines.values())))
        campaign.replay(trial, engines, options.rounds, _say)
        campaign.sweep(trial, [step for engine in engines.values() for step in engine.seen])
        report.write_trial(options.out, trial)
        print(report.described(trial), report.replay_table(trial), sep="\n\n", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
