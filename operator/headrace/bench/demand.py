"""A workload as the fluid model sees it: how much arrives in each step of time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.bench.arrivals import multiply, renewal, spread_quantised
from headrace.bench.profile import Mix, Profile
from headrace.bench.trace import Floats, Lengths, Series, Trace

MEAN_REPLICAS = 6.0  # traces that need fewer on the mean are multiplied to this
USUAL_RHO = 0.8  # load of a replica that counts as full for that
STEPS = ((4 * 3600.0, 1.0), (float("inf"), 5.0))  # of time, in series up to so long
_EPSILON = 1e-9  # arrivals in an empty step, so that positions stay ordered


@dataclass(frozen=True)
class Demand:
    """Arrivals by step: step i is [i dt, (i + 1) dt)."""

    name: str
    dt: float  # seconds
    count: Floats  # requests, shape (steps,)
    work: Floats  # seconds of a replica
    prompt: Floats  # tokens
    output: Floats  # tokens
    mix: Mix
    copies: int = 1
    attended: Floats | None = None  # tokens that prompt tokens attend to; None: all prompts of a step are alike

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.count)

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.steps * self.dt

    @cached_property
    def times(self) -> Floats:
        """Edges of the steps, shape (steps + 1,)."""
        return np.arange(self.steps + 1, dtype=np.float64) * self.dt

    @cached_property
    def counted(self) -> Floats:
        """Requests that have arrived by each edge."""
        return np.concatenate(([0.0], np.cumsum(self.count)))

    @cached_property
    def told(self) -> tuple[Floats, Floats, Floats]:
        """Prompt tokens, output tokens, and tokens that prompt tokens attend to, that have arrived by each edge."""
        attended = self.attended
        if attended is None:
            attended = self.prompt * self.prompt / np.maximum(self.count, 1e-9) / 2
        sums = [np.concatenate(([0.0], np.cumsum(values))) for values in (self.prompt, self.output, attended)]
        return sums[0], sums[1], sums[2]

    @cached_property
    def worked(self) -> Floats:
        """Work that has arrived by each edge; strictly rising."""
        return np.concatenate(([0.0], np.cumsum(self.work + _EPSILON)))

    def peak_work(self, span_s: float = 60.0) -> float:
        """Most work per second over any `span_s`."""
        width = max(1, round(span_s / self.dt))
        sums = self.worked[width:] - self.worked[:-width] if self.steps >= width else self.worked[-1:]
        return float(np.max(sums)) / (width * self.dt)


def of_trace(trace: Trace, profile: Profile, dt: float = 1.0) -> Demand:
    """Bin the requests of a trace."""
    steps = max(1, math.ceil(trace.duration_s / dt))
    index = np.minimum((trace.arrival_s / dt).astype(np.int64), steps - 1)
    work = profile.work_s(trace.prompt, trace.output)
    count, worked, prompt, output, attended = (
        np.asarray(np.bincount(index, weights, steps), dtype=np.float64)
        for weights in (None, work, trace.prompt, trace.output, trace.prompt.astype(np.float64) ** 2 / 2)
    )
    mix = Mix.of(profile, trace.prompt, trace.output)
    return Demand(trace.name, dt, count, worked, prompt, output, mix, attended=attended)


def of_series(series: Series, lengths: Lengths | Trace, profile: Profile, seed: int, dt: float = 5.0) -> Demand:
    """Counts with the mean and variance of a Gamma renewal process (cv^2 times the mean), lengths drawn from
    `lengths`."""
    random = np.random.default_rng(seed)
    steps = math.ceil(series.duration_s / dt)
    rate, cv = series.at((np.arange(steps, dtype=np.float64) + 0.5) * dt)
    mean, spread = np.maximum(rate * dt, 1e-6), np.maximum(cv, 0.05) ** 2
    count = random.gamma(mean / spread, spread)
    mix = Mix.of(profile, lengths.prompt, lengths.output)
    work_each = profile.work_s(lengths.prompt, lengths.output)
    noise = random.normal(0.0, 1.0, steps) * float(work_each.std()) * np.sqrt(count)
    work = np.maximum(count * mix.work_s + noise, 0.2 * count * mix.work_s)
    attended = count * float((lengths.prompt.astype(np.float64) ** 2).mean() / 2)
    return Demand(series.name, dt, count, work, count * mix.prompt, count * mix.output, mix, attended=attended)


def copies_for(rate: float, mix: Mix) -> int:
    """How often each request is replayed, so that the mean demand is a fleet of MEAN_REPLICAS."""
    return max(1, round(MEAN_REPLICAS * USUAL_RHO / max(rate * mix.work_s, 1e-9)))


def requests(source: Trace | Series, lengths: Lengths | Trace, profile: Profile, seed: int) -> tuple[Trace, int]:
    """The requests of a workload at a fleet's size, and how often each is replayed."""
    if isinstance(source, Trace):
        copies = copies_for(source.rate, Mix.of(profile, source.prompt, source.output))
        return multiply(spread_quantised(source, seed), copies, seed + 1), copies
    copies = copies_for(float(source.rate.mean()), Mix.of(profile, lengths.prompt, lengths.output))
    return renewal(scaled(source, copies), lengths, seed), copies


def scaled(series: Series, copies: int) -> Series:
    """So many times the rate, as from so many independent populations of clients."""
    return replace(series, rate=series.rate * copies)


def build(source: Trace | Series, lengths: Lengths | Trace, profile: Profile, seed: int) -> Demand:
    """The demand of a workload at a fleet's size; a series is never turned into single requests for it."""
    if isinstance(source, Trace):
        trace, copies = requests(source, lengths, profile, seed)
        return replace(of_trace(trace, profile), copies=copies)
    copies = copies_for(float(source.rate.mean()), Mix.of(profile, lengths.prompt, lengths.output))
    dt = next(step for longest, step in STEPS if source.duration_s <= longest)
    return replace(of_series(scaled(source, copies), lengths, profile, seed, dt), copies=copies)
