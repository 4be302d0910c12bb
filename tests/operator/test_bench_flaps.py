"""How the controller swings: square waves, a step, a ramp, and mishaps in a surge. Expectations are bounds that hold
for any good controller, not the answers of one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headrace.bench import patterns, production, profile
from headrace.bench.fleet import Pods
from headrace.bench.fluid import Fleets, Lane, Slo
from headrace.bench.request import Outcome, ServiceClass
from headrace.bench.scalers import Production, Scraping
from headrace.bench.simulator import Setup, Simulation
from headrace.bench.trace import Floats, Trace
from headrace.scaling.types import Reason

H100 = profile.load("h100-8b")
SLO = Slo("tight", 1.0, 0.04, 0.95)
COLD_S = 40.0
SURGE_S = 240.0
LANE = Lane(COLD_S, SLO, 16, 3)


def _wanted(load: Floats) -> tuple[list[int], Fleets]:
    fleets = Fleets(patterns.demand("pattern", load, H100, SLO.tpot_s), H100, [LANE])
    controller = production.Controller(0, production.policy_of(LANE, int(fleets.slots[0]), 1.0), H100)
    wanted = []
    while not fleets.done:
        seen = fleets.step()
        wanted.append(controller.decide(seen, fleets.served_tokens(), COLD_S))
        fleets.scale(np.array([float(wanted[-1])]))
    return wanted, fleets


def _turns(wanted: list[int]) -> int:
    """How often growth turns into shrinking, or the other way."""
    signs = [s for s in np.sign(np.diff(wanted)).tolist() if s]
    return sum(a != b for a, b in pairwise(signs))


@pytest.mark.parametrize("periods", [0.5, 1.0, 2.0, 4.0], ids=lambda p: f"{p:g} cold starts")
def test_square_waves_are_not_amplified(periods: float) -> None:
    period = periods * COLD_S
    seconds = max(6 * period, 600.0)
    wanted, _ = _wanted(patterns.square(period, 2.0, 5.0, seconds))
    assert _turns(wanted) <= 2 * seconds / period
    assert max(wanted) <= 2 * 5 + 1
    assert min(wanted[300:]) >= 2


def test_a_step_is_followed_and_stays() -> None:
    wanted, fleets = _wanted(patterns.step(2.0, 6.0, 300.0, 1500.0))
    assert wanted[290] <= 5
    assert min(wanted[480:]) >= 6
    assert _turns(wanted) <= 2
    assert fleets.recovery_s()[0] <= 3 * COLD_S


def test_a_ramp_is_followed() -> None:
    wanted, fleets = _wanted(patterns.ramp(2.0, 8.0, 200.0, 1400.0, 1800.0))
    assert wanted[-1] >= 8
    assert _turns(wanted) <= 4
    assert fleets.attainment()[0] > 0.85


def test_falling_load_gives_replicas_back_one_by_one() -> None:
    wanted, fleets = _wanted(patterns.step(3.0, 0.5, 60.0, 2400.0))
    down = [d for d in np.diff(wanted).tolist() if d < 0]
    assert down and min(down) >= -1
    assert wanted[-1] <= 2
    assert fleets.attainment()[0] > 0.99


def _surge(scraping: Scraping, pods: Pods | None = None) -> tuple[Simulation, Production]:
    """Load of two replicas for 60 s, then of five, on three that are ready."""
    random = np.random.default_rng(11)
    load = patterns.demand("surge", patterns.step(2.0, 5.0, 60.0, SURGE_S), H100, SLO.tpot_s)
    arrival = np.sort(np.concatenate([i + random.random(random.poisson(c)) for i, c in enumerate(load.count)]))
    count = len(arrival)
    trace = Trace("surge", arrival, np.full(count, patterns.PROMPT), np.full(count, patterns.OUTPUT), SURGE_S)
    slots = int(Fleets(load, H100, [LANE]).slots[0])
    classes = (ServiceClass(production.CLASS, SLO.ttft_s, SLO.tpot_s),)
    setup = Setup(trace, H100, classes, slots, 3, pods=pods or Pods(COLD_S), margin_s=0.25)
    scaler = Production(production.policy_of(LANE, slots, 1.0), scraping)
    return Simulation(setup, scaler).run(), scaler


MISHAPS = {
    "none": (Scraping(), None),
    "30 s without metrics in the surge": (Scraping(gaps=((65.0, 95.0),)), None),
    "late metrics": (Scraping(delay_s=4.0), None),
    "the operator restarts": (Scraping(restarts=(75.0,)), None),
    "its clock goes back": (Scraping(jumps=((75.0, -3600.0),)), None),
    "its clock goes ahead": (Scraping(jumps=((75.0, 3600.0),)), None),
    "loads get stuck": (Scraping(), Pods(COLD_S, stuck_share=0.4, stuck_s=150.0)),
    "replicas are lost": (Scraping(), Pods(COLD_S, failures_per_hour=12.0)),
    "no node for more than four": (Scraping(), Pods(COLD_S, room=4)),
}


@pytest.mark.parametrize("name", [name for name in MISHAPS if name != "none"])
def test_mishaps_in_a_surge_never_scale_down(name: str) -> None:
    run, scaler = _surge(*MISHAPS[name])
    down = [d for d in scaler.decisions if d.replicas < d.current]
    assert all(d.reason is Reason.UNSCHEDULABLE for d in down)  # growth without a node may be given back
    assert "no node" in name or not down
    assert run.fleet.wanted >= (4 if "no node" in name else 5)
    assert run.ledger.count(Outcome.OPEN) == 0


def test_recovery_from_a_gap_is_bounded() -> None:
    first = {
        name: min((d.at for d in _surge(*MISHAPS[name])[1].decisions if d.replicas > d.current), default=float("inf"))
        for name in ("none", "30 s without metrics in the surge")
    }
    assert first["30 s without metrics in the surge"] - first["none"] <= 40.0
