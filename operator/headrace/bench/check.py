"""The winners of the fluid model once more, by discrete events: the controller, and the best baseline of hindsight."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.bench import demand as demands
from headrace.bench import production
from headrace.bench.baselines import BASELINES, Setting
from headrace.bench.cells import Cell, Row, lane_of, slos
from headrace.bench.demand import Demand
from headrace.bench.fleet import Pods
from headrace.bench.fluid import Lane
from headrace.bench.profile import Capacity, Profile
from headrace.bench.request import Outcome, ServiceClass
from headrace.bench.scalers import Foreign, Production
from headrace.bench.simulator import Scaler, Setup, Simulation
from headrace.bench.trace import Trace
from headrace.bench.verdict import verdicts

BIN_S = 10.0


@dataclass(frozen=True)
class Part:
    """What is run of a trace, and how."""

    most: int = 400_000  # requests: its first part that holds so many
    margins_s: tuple[float, ...] = (0.0, 0.25)  # of the gateway's deadline: as it is, and what the fluid supposes


WHOLE = Part()


@dataclass(frozen=True)
class Case:
    """One run."""

    cell: Cell
    lane: Lane
    policy: str
    parameters: dict[str, float]
    margin_s: float


def run(trace: Trace, profile: Profile, rows: Sequence[Row], seed: int, how: Part = WHOLE) -> Iterator[Row]:
    """Discrete rows for the cells of `rows` (which are of this trace): the controller's by each margin, the best
    baseline's by the last one."""
    part = trace.first(min(1.0, how.most / max(1, len(trace))))
    demand = demands.of_trace(part, profile)
    targets = {slo.name: slo for slo in slos(demands.of_trace(trace, profile))}
    for verdict in sorted(verdicts(rows), key=lambda v: v.key):
        cell = Cell(verdict.key[0], verdict.key[1], targets[verdict.key[2]])
        lane = lane_of(cell, demand, profile)
        cases = [Case(cell, lane, production.NAME, {}, margin) for margin in how.margins_s]
        if verdict.best_tuned is not None:
            cases.append(Case(cell, lane, verdict.best_tuned.policy, verdict.best_tuned.parameters, how.margins_s[-1]))
        for case in cases:
            yield _row(case, part, demand, (profile, seed, verdict.ours.oracle_replica_seconds))


def _row(case: Case, trace: Trace, demand: Demand, rest: tuple[Profile, int, float]) -> Row:
    profile, seed, oracle = rest
    began = time.monotonic()
    simulation = simulate(case, trace, demand, profile, seed)
    ledger, slo = simulation.ledger, case.cell.slo
    good, offered = ledger.count(Outcome.GOOD), len(trace)
    key = f"{case.cell.trace} {case.cell.cold_start_s:g} s {slo.name} {case.policy} margin {case.margin_s:g} s"
    print(
        f"{key}: {offered} requests by discrete events ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True
    )
    whole = len(trace) / max(1.0, float(demand.count.sum()))
    return Row(
        trace=case.cell.trace,
        cold_start=case.cell.cold_start_s,
        slo=slo.name,
        policy=case.policy,
        parameters=case.parameters,
        tuned=case.policy != production.NAME,
        attainment=round(good / max(1, offered), 5),
        goodput=round(good / trace.duration_s, 3),
        replica_seconds=round(simulation.fleet.replica_s, 1),
        oracle_replica_seconds=oracle if whole >= 1 else 0.0,
        actions_per_hour=round(simulation.fleet.actions * 3600 / trace.duration_s, 2),
        recovery_seconds=_recovery(simulation, slo.objective),
        objective=slo.objective,
        model="discrete",
        margin_seconds=case.margin_s,
    )


def simulate(case: Case, trace: Trace, demand: Demand, profile: Profile, seed: int) -> Simulation:
    """One run by discrete events."""
    slo, lane = case.cell.slo, case.lane
    capacity = Capacity.of(profile, demand.mix, slo.tpot_s)
    classes = (ServiceClass(production.CLASS, slo.ttft_s, slo.tpot_s, objective=slo.objective),)
    setup = Setup(
        trace,
        profile,
        classes,
        capacity.slots,
        lane.start,
        pods=Pods(cold_start_s=lane.cold_start_s, room=lane.max_replicas),
        seed=seed,
        margin_s=case.margin_s,
    )
    return Simulation(setup, _scaler(case, demand, profile, capacity)).run()


def _scaler(case: Case, demand: Demand, profile: Profile, capacity: Capacity) -> Scaler:
    if case.policy == production.NAME:
        return Production(production.policy_of(case.lane, capacity.slots, 1.0))
    rule = next(kind for kind in BASELINES if kind.name == case.policy)
    slo = case.cell.slo
    setting = Setting(
        1.0,
        np.array([float(capacity.slots)]),
        np.array([capacity.rho]),
        float(profile.kv_tokens),
        profile.step_seconds,
        np.array([slo.tpot_s]),
        np.array([slo.ttft_s]),
        profile,
    )
    return Foreign(rule([case.parameters], setting), demand.mix)


def _recovery(simulation: Simulation, objective: float) -> float:
    """The longest time in which every bin of arrivals missed the objective, in seconds."""
    ledger = simulation.ledger
    bins = (ledger.arrived / BIN_S).astype(np.int64)
    good = np.array([o == Outcome.GOOD for o in ledger.outcome[: len(bins)]], dtype=np.float64)
    total = np.bincount(bins)
    share = np.bincount(bins, good) / np.maximum(1, total)
    longest = running = 0
    for missed in ((share < objective) & (total > 0)).tolist():
        running = running + 1 if missed else 0
        longest = max(longest, running)
    return longest * BIN_S
