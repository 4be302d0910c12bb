"""The cells of the benchmark: trace x cold start x service level, and every policy in each of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.bench import production
from headrace.bench.baselines import BASELINES, Baseline, Setting
from headrace.bench.demand import Demand
from headrace.bench.fluid import Fleets, Lane, Slo
from headrace.bench.oracle import Plant, lower_bound
from headrace.bench.profile import Profile

LONG_ENOUGH = 6  # cold starts that a trace must last
TIGHT_TTFT_S, LOOSE_TTFT_S = 1.0, 4.0
TIGHT_TPOT_S, LOOSE_TPOT_S = 0.040, 0.100
OBJECTIVE = 0.95
ROOM = 2.0  # max_replicas over the replicas that the busiest minute takes


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One policy in one cell."""

    trace: str
    cold_start: float
    slo: str
    policy: str
    parameters: dict[str, float] = {}
    tuned: bool = False
    attainment: float
    goodput: float  # good requests/s
    replica_seconds: float
    oracle_replica_seconds: float
    actions_per_hour: float
    recovery_seconds: float
    objective: float = OBJECTIVE
    model: str = "fluid"  # or "discrete"
    margin_seconds: float = 0.0  # of the gateway's deadline, under discrete events
    frontier: tuple[tuple[float, float], ...] = ()
    """Of a tuned row: attainment and replica-seconds of the settings of its grid that no other of them dominates."""

    @property
    def meets(self) -> bool:
        """The objective was reached."""
        return self.attainment >= self.objective


@dataclass(frozen=True)
class Cell:
    """One cell."""

    trace: str
    cold_start_s: float
    slo: Slo


@dataclass(frozen=True)
class Grid:
    """Which cells are run."""

    cold_starts: tuple[float, ...] = (30.0, 120.0, 300.0)
    oracle: bool = True
    baselines: bool = True
    rules: tuple[str, ...] = ()  # of the other policies; none named: all of them


def slos(demand: Demand) -> tuple[Slo, Slo]:
    """Tight and loose. TTFT: 1 and 4 s, but not less than 2 and 8 times what the 99th percentile's prompt takes to
    prefill alone; TPOT: 40 and 100 ms."""
    alone = demand.mix.prefill_p99_s
    return (
        Slo("tight", max(TIGHT_TTFT_S, round(2 * alone, 1)), TIGHT_TPOT_S, OBJECTIVE),
        Slo("loose", max(LOOSE_TTFT_S, round(8 * alone, 1)), LOOSE_TPOT_S, OBJECTIVE),
    )


def run(demand: Demand, profile: Profile, grid: Grid, known: Sequence[Row] = ()) -> list[Row]:
    """Every policy in every cell of one demand. Other policies' rows are taken from `known` where it has all cells."""
    cells = [Cell(demand.name, cold, slo) for cold in _lasting(demand, grid.cold_starts) for slo in slos(demand)]
    if not cells:
        return []
    progress = Progress(demand.name)
    lanes = [lane_of(cell, demand, profile) for cell in cells]
    fleets = Fleets(demand, profile, lanes)
    production.run(fleets)
    progress.say("headrace")
    tables = [_Result(cell, i, production.NAME, {}, False, fleets) for i, cell in enumerate(cells)]
    kept = [[row for row in known if _is_other(row, cell)] for cell in cells]
    if all(kept):
        ours = [_row(entry, rows[0].oracle_replica_seconds) for entry, rows in zip(tables, kept, strict=True)]
        return ours + [row for rows in kept for row in rows]
    if grid.baselines:
        for rule in (r for r in BASELINES if not grid.rules or r.name in grid.rules):
            tables.extend(_baseline(rule, demand, profile, (cells, lanes)))
            progress.say(rule.name)
    oracles = [_oracle(fleets, i) if grid.oracle else 0.0 for i in range(len(cells))]
    progress.say("oracle")
    by_cell = dict(zip(cells, oracles, strict=True))
    return [_row(entry, by_cell[entry.cell]) for entry in tables]


def _lasting(demand: Demand, cold_starts: Sequence[float]) -> list[float]:
    """Cold starts for which the demand lasts long enough; the others are told on standard error."""
    for cold in cold_starts:
        if demand.duration_s < LONG_ENOUGH * cold:
            print(
                f"{demand.name}: cold start {cold:g} s left out: it needs a trace of {LONG_ENOUGH * cold:g} s "
                f"({LONG_ENOUGH} cold starts), this one lasts {demand.duration_s:g} s",
                file=sys.stderr,
                flush=True,
            )
    return [cold for cold in cold_starts if demand.duration_s >= LONG_ENOUGH * cold]


def _is_other(row: Row, cell: Cell) -> bool:
    """A row of another policy in this cell, on the fluid model."""
    same = (row.trace, row.cold_start, row.slo) == (cell.trace, cell.cold_start_s, cell.slo.name)
    return same and row.model == "fluid" and row.policy != production.NAME


@dataclass(frozen=True)
class _Result:
    """Where one policy's result in one cell is found."""

    cell: Cell
    lane: int
    policy: str
    parameters: dict[str, float]
    tuned: bool
    fleets: Fleets
    frontier: tuple[tuple[float, float], ...] = ()


def lane_of(cell: Cell, demand: Demand, profile: Profile) -> Lane:
    one = Lane(cell.cold_start_s, cell.slo, 1, 1)
    rho = float(Fleets(demand, profile, [one]).rho_cap[0])
    first = max(1, round(60.0 / demand.dt))
    start = max(1, math.ceil(float(demand.work[:first].mean()) / demand.dt / rho * 1.1))
    most = max(start, math.ceil(demand.peak_work() / rho * ROOM))
    return Lane(cell.cold_start_s, cell.slo, most, start)


def _baseline(
    rule: type[Baseline],
    demand: Demand,
    profile: Profile,
    parts: tuple[list[Cell], list[Lane]],
) -> Iterator[_Result]:
    cells, lanes = parts
    rho = [float(r) for r in Fleets(demand, profile, lanes).rho_cap]
    sets = [rule.prepare(demand, r) for r in rho]
    many = [(i, parameters) for i, chosen in enumerate(sets) for parameters in chosen]
    fleets = Fleets(demand, profile, [lanes[i] for i, _ in many])
    setting = Setting(
        demand.dt, fleets.slots, fleets.rho_cap, float(profile.kv_tokens), profile.step_seconds,
        np.array([lanes[i].slo.tpot_s for i, _ in many]), np.array([lanes[i].slo.ttft_s for i, _ in many]), profile,
    )  # fmt: skip
    policy = rule([parameters for _, parameters in many], setting)
    while not fleets.done:
        wanted = policy.decide(fleets.step())
        if wanted is not None:
            fleets.scale(wanted)
    attainment, cost = fleets.attainment(), fleets.tally.replica_s
    for i, cell in enumerate(cells):
        mine = [k for k, (lane, _) in enumerate(many) if lane == i]
        yield _Result(cell, mine[0], rule.name, many[mine[0]][1], False, fleets)
        meeting = [k for k in mine if attainment[k] >= cell.slo.objective]
        best = min(meeting, key=lambda k: cost[k]) if meeting else max(mine, key=lambda k: (attainment[k], -cost[k]))
        points = pareto((float(attainment[k]), float(cost[k])) for k in mine)
        yield _Result(cell, best, rule.name, many[best][1], True, fleets, points)


def pareto(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Those of (attainment, cost) that no other dominates, the cheapest first."""
    kept: list[tuple[float, float]] = []
    for attainment, cost in sorted(points, key=lambda point: (point[1], -point[0])):
        if not kept or attainment > kept[-1][0]:
            kept.append((attainment, cost))
    return tuple((round(attainment, 5), round(cost, 1)) for attainment, cost in kept)


def _oracle(fleets: Fleets, lane: int) -> float:
    setting = fleets.lanes[lane]
    plant = Plant(float(fleets.rho_cap[lane]), float(fleets.patience[lane]), setting.cold_start_s, setting.max_replicas)
    return lower_bound(fleets.demand, plant, setting.slo.objective)


def _row(result: _Result, oracle: float) -> Row:
    cell, lane, fleets = result.cell, result.lane, result.fleets
    attainment, tally = float(fleets.attainment()[lane]), fleets.tally
    return Row(
        trace=cell.trace,
        cold_start=cell.cold_start_s,
        slo=cell.slo.name,
        policy=result.policy,
        parameters={name: float(value) for name, value in result.parameters.items()},
        tuned=result.tuned,
        attainment=round(attainment, 5),
        goodput=round(float(tally.good[lane]) / fleets.demand.duration_s, 3),
        replica_seconds=round(float(tally.replica_s[lane]), 1),
        oracle_replica_seconds=round(oracle, 1),
        actions_per_hour=round(float(tally.actions[lane]) * 3600 / fleets.demand.duration_s, 2),
        recovery_seconds=float(fleets.recovery_s()[lane]),
        objective=cell.slo.objective,
        frontier=result.frontier,
    )


class Progress:
    """What has been done, on standard error."""

    def __init__(self, name: str):
        self._name = name
        self._began = time.monotonic()

    def say(self, part: str) -> None:
        """A part is done."""
        print(f"{self._name}: {part} ({time.monotonic() - self._began:.1f} s)", file=sys.stderr, flush=True)
