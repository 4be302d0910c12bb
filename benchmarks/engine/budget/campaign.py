"""What is measured, in which order: calibration, replays in rounds, the gap, and a sweep of loads by a fitted model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine.budget.engines import Modelled, Timed
from benchmarks.engine.budget.figures import Figures, figures, middle
from benchmarks.engine.budget.gap import Gap
from benchmarks.engine.budget.gap import measure as measure_gap
from benchmarks.engine.budget.policies import POLICIES, Policy
from benchmarks.engine.budget.replay import Outcome, Replay, Targets, together
from benchmarks.engine.budget.workload import Request, Workload

from headrace_engine.core.budget import Pace, StepTimes, StepWork

LOAD = 0.6  # arrivals, of what fixed steps of 512 tokens can take
TPOT_STEPS = 5.0  # the target between tokens, in steps of eight streams alone
MEAN_CONTEXT = 256  # tokens of these
TTFT_TPOTS = 10  # the target of the first token, in those: as in the default class
SWEEP = (0.4, 0.6, 0.75, 0.9, 1.0, 1.2)  # loads
GAPS: tuple[tuple[str, bool, int], ...] = (
    ("adaptive", True, 2048),
    ("fixed 512", False, 512),
    ("fixed 2048", False, 2048),
)
Say = Callable[[str], None]


@dataclass
class Trial:
    """One workload, measured."""

    workload: Workload
    capacity: float = 0.0  # requests/s
    targets: Targets = Targets(0.0, 0.0)  # noqa: RUF009
    rounds: dict[str, list[Figures]] = field(default_factory=dict)  # by policy
    shown: dict[str, Outcome] = field(default_factory=dict)  # of the last round
    sweep: dict[str, list[tuple[float, Figures]]] = field(default_factory=dict)  # load, by policy
    error: float = 0.0  # of the step-time model: median of |predicted - took| / took over all steps

    @property
    def medians(self) -> dict[str, Figures]:
        """By policy, over the rounds."""
        return {policy.name: middle(self.rounds[policy.name]) for policy in POLICIES}


def calibrate(trial: Trial, engine: Timed) -> None:
    """How many requests/s steps of 512 tokens take, and a step of eight streams alone: load and targets follow."""
    at_once = [Request(one.name, 0.0, one.tokens, one.output) for one in trial.workload.requests]
    offline = Replay(Workload("", "", at_once), Policy("offline", 512), engine, Targets(1.0, 1.0)).run()
    trial.capacity = len(at_once) / offline.end
    times = StepTimes()
    for work, took in engine.seen:
        times.observe(work, took)
    tpot = TPOT_STEPS * times.predict(StepWork(8, 8 * MEAN_CONTEXT, 0))
    trial.targets = Targets(TTFT_TPOTS * tpot, tpot)
    trial.workload = trial.workload.at_rate(LOAD * trial.capacity)


def replay(trial: Trial, engines: dict[str, Timed], rounds: int, say: Say) -> None:
    """All policies together, each on an engine of its own."""
    for number in range(rounds):
        replays = {p.name: Replay(trial.workload, p, engines[p.name], trial.targets) for p in POLICIES}
        together(replays.values())
        for name, one in replays.items():
            found = figures(one.outcome, prompt_tokens(trial.workload), trial.targets)
            trial.rounds.setdefault(name, []).append(found)
            trial.shown[name] = one.outcome
            say(f"{trial.workload.name}, round {number + 1}, {name}: {found}")


def sweep(trial: Trial, seen: list[tuple[StepWork, float]]) -> None:
    """Goodput over load, by the same scheduler with a step-time model fitted to all steps that were timed.

    Each step takes what the model says, times a factor drawn from what was measured against it: a budget that adapts
    meets the same surprises as in the engine.
    """
    shuffled = list(seen)
    random.Random(1).shuffle(shuffled)
    times = StepTimes()
    for work, took in shuffled:
        times.observe(work, took)
    factors = [took / times.predict(work) for work, took in seen]
    trial.error = median(abs(1 - factor) for factor in factors)
    for policy in POLICIES:
        for load in SWEEP:
            workload = trial.workload.at_rate(load * trial.capacity)
            engine = Modelled(times, factors, random.Random(2))
            outcome = Replay(workload, policy, engine, trial.targets).run()
            found = figures(outcome, prompt_tokens(workload), trial.targets)
            trial.sweep.setdefault(policy.name, []).append((load, found))


def gaps(engine: Timed, rounds: int, say: Say) -> dict[str, list[tuple[Gap, Gap]]]:
    """The long prompt beside eight streams, in turns; by the processor's time and by the wall's."""
    found: dict[str, list[tuple[Gap, Gap]]] = {}
    for number in range(rounds):
        for name, adaptive, tokens in GAPS:
            pair = measure_gap(engine, Pace() if adaptive else None, tokens, seed=number)
            found.setdefault(name, []).append(pair)
            say(f"gap, round {number + 1}, {name}: {pair[0].ratio:.1f} medians ({pair[1].ratio:.1f} by the wall)")
    return found


def prompt_tokens(workload: Workload) -> int:
    """Over all requests."""
    return sum(one.prompt for one in workload.requests)
