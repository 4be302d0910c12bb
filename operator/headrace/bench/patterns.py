"""Loads of known shape, in replicas that they fill: for tests of how a controller swings."""

from __future__ import annotations

import numpy as np

from headrace.bench.demand import Demand
from headrace.bench.profile import Capacity, Mix, Profile
from headrace.bench.trace import Floats

PROMPT, OUTPUT = 1000, 200  # tokens of every request


def demand(name: str, load: Floats, profile: Profile, tpot_s: float, dt: float = 1.0) -> Demand:
    """Requests of one size that fill `load` replicas at the TPOT target, by step."""
    mix = Mix.of(profile, np.array([PROMPT]), np.array([OUTPUT]))
    work = load * Capacity.of(profile, mix, tpot_s).rho * dt
    count = work / mix.work_s
    return Demand(name, dt, count, work, count * PROMPT, count * OUTPUT, mix)


def square(period_s: float, low: float, high: float, seconds: float) -> Floats:
    """Half of the period low, then half of it high."""
    phase = (np.arange(round(seconds), dtype=np.float64) % period_s) / period_s
    return np.where(phase < 0.5, low, high)


def step(low: float, high: float, at_s: float, seconds: float) -> Floats:
    """One step."""
    return np.where(np.arange(round(seconds)) < at_s, low, high).astype(np.float64)


def ramp(low: float, high: float, begin_s: float, end_s: float, seconds: float) -> Floats:
    """From low to high, linear from `begin_s` to `end_s`."""
    return np.asarray(np.interp(np.arange(round(seconds)), [begin_s, end_s], [low, high]), dtype=np.float64)
