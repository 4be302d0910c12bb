"""The fluid model, the oracle's bound below every policy, and agreement with discrete events."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.bench import production, profile
from headrace.bench.demand import Demand, of_trace
from headrace.bench.fluid import Fleets, Lane, Slo
from headrace.bench.oracle import Plant, lower_bound
from headrace.bench.profile import Capacity, Mix
from headrace.bench.request import Outcome, ServiceClass
from headrace.bench.scalers import Constant
from headrace.bench.simulator import Setup, Simulation
from headrace.bench.trace import Trace

H100 = profile.load("h100-8b")
SLO = Slo("tight", 1.0, 0.04, 0.95)
MIX = Mix.of(H100, np.array([1000]), np.array([200]))
CAP = Capacity.of(H100, MIX, SLO.tpot_s)


def _demand(load: list[float], dt: float = 1.0) -> Demand:
    """`load` in replicas that it fills, by step."""
    work = np.array(load) * CAP.rho * dt
    count = work / MIX.work_s
    return Demand("synthetic", dt, count, work, count * 1000, count * 200, MIX)


def _fleets(demand: Demand, cold: float = 30.0, start: int = 4, lanes: int = 1) -> Fleets:
    return Fleets(demand, H100, [Lane(cold, SLO, 12, start) for _ in range(lanes)])


def test_capacity_is_littles_law() -> None:
    assert CAP.rho == pytest.approx(1 - 0.007 / 0.036)
    assert CAP.step_s == pytest.approx(0.036)
    rate = CAP.rho / MIX.work_s
    assert CAP.slots == round(rate * (200 * 0.036 + MIX.prefill_s / (1 - CAP.rho)))


def test_full_replicas_serve_all_and_one_fewer_sheds_the_rest() -> None:
    for ready, share in ((4, 1.0), (3, 0.75)):
        fleets = _fleets(_demand([4.0] * 400), start=ready)
        while not fleets.done:
            seen = fleets.step()
        assert fleets.attainment()[0] == pytest.approx(share, abs=0.005)
        assert seen.in_flight[0] == pytest.approx(ready * CAP.slots, rel=0.02)
        assert fleets.tally.replica_s[0] == pytest.approx(ready * 400)


def test_a_replica_is_ready_after_its_cold_start_and_paid_before() -> None:
    fleets = _fleets(_demand([1.0] * 100), cold=30.0, start=1)
    ready = []
    while not fleets.done:
        seen = fleets.step()
        ready.append(int(seen.ready[0]))
        if len(ready) == 10:
            fleets.scale(np.array([3.0]))
    assert ready[39] == 1 and ready[40] == 3
    assert fleets.tally.replica_s[0] == pytest.approx(10 * 1 + 90 * 3)


def test_the_youngest_pending_go_first() -> None:
    fleets = _fleets(_demand([1.0] * 100), cold=30.0, start=2)
    for step in range(60):
        seen = fleets.step()
        if step in (0, 10):
            fleets.scale(seen.current + 1)
        if step == 20:
            fleets.scale(seen.current - 1)
    assert (seen.ready[0], seen.current[0]) == (3, 3)  # the one of step 10 never came


def test_queue_age_and_shedding_follow_the_patience() -> None:
    fleets = _fleets(_demand([2.0] * 60), start=1)
    oldest = 0.0
    while not fleets.done:
        seen = fleets.step()
        oldest = max(oldest, float(seen.oldest_s[0]))
    assert fleets.patience[0] < oldest <= fleets.patience[0] + 1.0 + 1e-6
    offered = fleets.tally.good[0] + fleets.tally.shed[0] + seen.queued[0]
    assert offered == pytest.approx(fleets.demand.count.sum(), rel=1e-6)


def _waves(seed: int) -> Demand:
    random = np.random.default_rng(seed)
    t = np.arange(300)
    base = 3.0 + 2.0 * np.sin(2 * math.pi * t / 150) + 0.5 * random.normal(size=300)
    base[100:120] += 3.0
    return _demand(np.maximum(0.1, base).tolist())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cold", [10.0, 60.0])
def test_no_policy_undercuts_the_oracle(seed: int, cold: float) -> None:
    demand = _waves(seed)
    patience = float(_fleets(demand).patience[0])
    plant = Plant(CAP.rho, patience, cold, 12)
    lanes = 4
    constant = _fleets(demand, cold, lanes=lanes)
    random = np.random.default_rng(seed)
    wanted = np.array([3.0, 5.0, 4.0, 4.0])
    while not constant.done:
        seen = constant.step()
        wanted[2] = np.clip(wanted[2] + random.integers(-1, 2), 1, 9)
        wanted[3] = math.ceil(seen.work / CAP.rho * 1.1)
        constant.scale(wanted)
    ours = _fleets(demand, cold)
    production.run(ours)
    results = [*zip(constant.attainment(), constant.tally.replica_s, strict=True)]
    results.append((float(ours.attainment()[0]), float(ours.tally.replica_s[0])))
    for attainment, cost in results:
        assert lower_bound(demand, plant, float(attainment)) <= cost * (1 + 1e-9) + 20.0


def test_the_oracle_of_a_constant_load_is_that_load() -> None:
    demand = _demand([4.0] * 600)
    bound = lower_bound(demand, Plant(CAP.rho, 0.8, 30.0, 20), 1.0)
    assert bound == pytest.approx(4 * 600, rel=0.02)
    most = lower_bound(demand, Plant(CAP.rho, 0.8, 30.0, 20), 0.75)
    assert most == pytest.approx(3 * 600, rel=0.02)


def test_the_oracle_pays_start_ups_or_keeps_replicas() -> None:
    gap = 40
    demand = _demand([5.0] * 200 + [1.0] * gap + [5.0] * 200)
    short = lower_bound(demand, Plant(CAP.rho, 0.8, 10.0, 20), 1.0)
    long = lower_bound(demand, Plant(CAP.rho, 0.8, 300.0, 20), 1.0)
    assert short == pytest.approx(2000 + gap + 4 * 10, rel=0.02)  # four go and come back
    assert long == pytest.approx(2000 + 5 * gap, rel=0.02)  # cheaper to keep all


def test_production_keeps_a_steady_load_and_follows_a_ramp() -> None:
    load = [3.0] * 600 + list(np.linspace(3.0, 8.0, 600)) + [8.0] * 300
    fleets = _fleets(_demand(load), cold=30.0, start=4)
    production.run(fleets)
    assert fleets.attainment()[0] > 0.9
    assert fleets.current[0] >= 8
    assert fleets.tally.replica_s[0] < 2 * sum(load)


def test_the_same_seed_gives_the_same() -> None:
    first, second = _fleets(_waves(3)), _fleets(_waves(3))
    for fleets in (first, second):
        production.run(fleets)
    assert first.tally.replica_s.tolist() == second.tally.replica_s.tolist()
    assert first.attainment().tolist() == second.attainment().tolist()


@pytest.mark.parametrize("replicas", [6, 4, 3], ids=["ample", "full", "short"])
def test_discrete_events_agree_with_the_fluid(replicas: int) -> None:
    """Share of good requests (to 2.5 percentage points) and replica-seconds (to 4 %) under Poisson arrivals that fill
    four replicas to 97 %. The gateway's deadline leaves to the engine what starts usually take."""
    slo = Slo("loose", 2.0, 0.06, 0.95)
    capacity = Capacity.of(H100, MIX, slo.tpot_s)
    random = np.random.default_rng(5)
    count = int(4 * 0.97 * capacity.rho / MIX.work_s * 200)
    arrival = np.sort(random.uniform(0.0, 200.0, count))
    trace = Trace("poisson", arrival, np.full(count, 1000), np.full(count, 200), 200.0)
    classes = (ServiceClass("default", slo.ttft_s, slo.tpot_s),)
    run = Simulation(Setup(trace, H100, classes, capacity.slots, replicas), Constant(replicas)).run()
    fleets = Fleets(of_trace(trace, H100), H100, [Lane(30.0, slo, 20, replicas)])
    while not fleets.done:
        fleets.step()
    discrete = run.ledger.count(Outcome.GOOD) / count
    assert discrete == pytest.approx(float(fleets.attainment()[0]), abs=0.025)
    assert run.fleet.replica_s == pytest.approx(float(fleets.tally.replica_s[0]), rel=0.04)
