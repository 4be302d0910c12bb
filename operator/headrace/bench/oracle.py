"""A lower bound on replica-seconds: perfect foresight on the fluid model.

Problem. Choose the whole number of ready replicas R in each step (dt seconds) so that the share of good requests is
at least the objective, at the least cost. A replica costs its time as ready and, for each one added after the start,
the cold start before it; removing is free and at once. A ready replica does rho_cap seconds of work a second; work
that waits longer than the patience tau is lost.

Relaxations, each of which can only lower the cost:
1. Steps are grouped into blocks of B >= tau seconds, m steps each. Within a block work may be served before it
   arrives, so of R only the mean over the block counts, a multiple of 1/m. Start-ups are counted between block
   means: the mean of the next block exceeds that of this one by (1/m) sum over steps of R(t + B) - R(t), and in the
   sum over all blocks each single increase of R is counted with weights that add up to one. So no more start-ups are
   paid than happen.
2. Work that crosses a block's end arrived in its last tau seconds; nothing else binds it. What crosses is rounded
   down to a grid: the rest is served for nothing.
3. The objective is priced: a lost request costs lambda, and up to (1 - objective) of all may be lost for nothing. By
   weak duality the priced minimum less lambda times the allowance is a bound for every lambda >= 0; the largest is
   taken. Lost work is turned into requests with the fewest requests per second of work of the two blocks that it can
   come from.
4. The start is chosen freely and not paid.
Short blocks lose by the rounding of 2, long ones by 1: the bound is the larger of both.

Dynamic programming over blocks on the state (R, crossing work): going from R to R' costs cold * max(0, R' - R),
which two running minima solve for all pairs; then the block is served greedily (what is not served crosses as far as
it may, the rest is lost: it can still be lost later, at the same price). It holds for policies that never run more
than `max_replicas`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.bench.demand import Demand
from headrace.bench.trace import Floats, Ints

LEVELS = 24  # of crossing work, at most
ROUNDS = 7  # of the search for the best price
STRIDE = 1.5  # of the logarithm of the price
MOST_EXPONENT = 16.0
GOLDEN = 0.618
LONG_S = 10.0  # the longer blocks
MOST_BLOCKS = 5000  # longer demands have longer blocks


@dataclass(frozen=True)
class Plant:
    """What binds the fluid model."""

    rho_cap: float
    patience_s: float
    cold_start_s: float
    max_replicas: int


@dataclass(frozen=True)
class _Blocks:
    seconds: float
    steps: int  # of the demand in one block
    work: Floats  # by block
    late: Floats  # of it, what arrived in the last tau
    density: Floats  # fewest requests per second of work, of the block and the one before
    requests: float  # in all


def lower_bound(demand: Demand, plant: Plant, objective: float) -> float:
    """Replica-seconds that no policy can undercut while `objective` of the offered requests are good."""
    least = max(1, math.ceil(plant.patience_s / demand.dt - 1e-9), math.ceil(demand.steps / MOST_BLOCKS))
    widths = {least, max(least, round(LONG_S / demand.dt))}
    return max(_best_price(_cut(demand, plant, width), plant, objective) for width in widths)


def _best_price(blocks: _Blocks, plant: Plant, objective: float) -> float:
    """The dual is concave in the price: a bracket by powers, then a golden section of the logarithm."""
    allowed = (1.0 - objective) * blocks.requests
    levels = _levels(blocks, plant)
    scale = blocks.seconds * float(blocks.work.sum()) / (plant.rho_cap * blocks.seconds * max(blocks.requests, 1.0))
    found: dict[float, float] = {}

    def bound(exponent: float) -> float:
        if exponent not in found:
            found[exponent] = _solve(blocks, plant, levels, scale * math.exp(exponent), allowed)
        return found[exponent]

    centre = 1.0
    while bound(centre + STRIDE) > bound(centre) and centre < MOST_EXPONENT:
        centre += STRIDE
    while bound(centre - STRIDE) > bound(centre):
        centre -= STRIDE
    low, high = centre - STRIDE, centre + STRIDE
    for _ in range(ROUNDS):
        first, second = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, second) if bound(first) >= bound(second) else (first, high)
    return max(0.0, *found.values())


def _cut(demand: Demand, plant: Plant, width: int) -> _Blocks:
    count = math.ceil(demand.steps / width)
    edges = np.minimum(np.arange(count + 1) * width * demand.dt, demand.duration_s)
    worked = np.interp(edges, demand.times, demand.worked)
    early = np.interp(np.maximum(edges[1:] - plant.patience_s, edges[:-1]), demand.times, demand.worked)
    work = np.diff(worked)
    requests = np.diff(np.interp(edges, demand.times, demand.counted))
    density = np.divide(requests, work, out=np.zeros_like(work), where=work > 1e-6)
    before = np.concatenate((density[:1], density[:-1]))
    fewest = np.minimum(density, np.where(before > 0, before, density))
    return _Blocks(width * demand.dt, width, work, worked[1:] - early, fewest, float(requests.sum()))


def _levels(blocks: _Blocks, plant: Plant) -> Floats:
    most = math.ceil(float(blocks.work.max()) * 1.02 / (plant.rho_cap * blocks.seconds)) + 1
    return np.arange(min(most, plant.max_replicas) * blocks.steps + 1) / blocks.steps


def _solve(blocks: _Blocks, plant: Plant, levels: Floats, price: float, allowed: float) -> float:
    """The bound at a price."""
    lanes = max(3, min(LEVELS, math.ceil(2 * LEVELS * plant.patience_s / blocks.seconds)))
    crossing = np.linspace(0.0, 1.0, lanes)[None, :]  # share of the largest crossing work
    served = levels[:, None] * plant.rho_cap * blocks.seconds
    paid = levels[:, None] * blocks.seconds
    cost = np.full((len(levels), lanes), np.inf)
    cost[:, 0] = 0.0
    rows = np.arange(len(levels))[:, None] * lanes
    before = 0.0
    for k in range(len(blocks.work)):
        if k:
            cost = _change(cost, levels, plant.cold_start_s)
        left = np.maximum(0.0, crossing * before + blocks.work[k] - served)
        most = float(blocks.late[k])
        crossed = np.minimum(left, most)
        cost = cost + paid + (price * blocks.density[k]) * (left - crossed)
        cost = _gather(cost, rows + _columns(crossed, most, lanes))
        before = most
    return float(cost.min()) - price * allowed


def _columns(crossed: Floats, most: float, lanes: int) -> Ints:
    """The grid point at or below each crossing work."""
    if most <= 0:
        return np.zeros(crossed.shape, np.int64)
    return np.asarray((crossed * ((lanes - 1) / most) + 1e-9).astype(np.int64))


def _change(cost: Floats, levels: Floats, cold: float) -> Floats:
    """The best way to each level from any other: up costs `cold` for each replica, down nothing."""
    steps = cold * levels[:, None]
    up = np.minimum.accumulate(cost - steps, axis=0) + steps
    down = np.minimum.accumulate(cost[::-1], axis=0)[::-1]
    return np.asarray(np.minimum(up, down))


def _gather(cost: Floats, states: Ints) -> Floats:
    """The cheapest of those that come to the same state. `states` never falls along the flattened array."""
    flat, target = cost.ravel(), states.ravel()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(target)) + 1))
    best = np.full(flat.shape, np.inf)
    best[target[starts]] = np.minimum.reduceat(flat, starts)
    return best.reshape(cost.shape)
