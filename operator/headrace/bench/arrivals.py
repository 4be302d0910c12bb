"""Arrivals: quantised times are spread, rates become requests, traces grow to the size of a fleet. All by seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.bench.trace import Floats, Lengths, Series, Trace

QUANTISED_SHARE = 0.5  # of the requests that share their time with another one, from where times count as quantised
COPY_SPREAD_S = 1.0  # copies of one request arrive within so long


def spread_quantised(trace: Trace, seed: int) -> Trace:
    """Times that stand in batches are jittered uniformly within the quantum (the median time between batches)."""
    distinct = np.unique(trace.arrival_s)
    if len(trace) < 2 or len(distinct) > QUANTISED_SHARE * len(trace):
        return trace
    quantum = float(np.median(np.diff(distinct))) if len(distinct) > 1 else 1.0
    jitter = np.random.default_rng(seed).uniform(0.0, quantum, len(trace))
    return _sorted(replace(trace, arrival_s=trace.arrival_s + jitter))


def multiply(trace: Trace, copies: int, seed: int) -> Trace:
    """Each request `copies` times, each copy at its own moment within a second: bursts of a second and more stay."""
    if copies <= 1:
        return trace
    chosen = np.repeat(np.arange(len(trace), dtype=np.int64), copies)
    many = trace.take(chosen)
    shift = np.random.default_rng(seed).uniform(0.0, COPY_SPREAD_S, len(chosen))
    return _sorted(replace(many, arrival_s=many.arrival_s + shift))


def thin(trace: Trace, rate: float, seed: int) -> Trace:
    """At most `rate` requests/s on the mean, each kept by chance."""
    keep = min(1.0, rate / trace.rate) if trace.rate > 0 else 1.0
    kept = np.flatnonzero(np.random.default_rng(seed).random(len(trace)) < keep)
    return trace.take(kept.astype(np.int64))


def renewal(series: Series, lengths: Lengths | Trace, seed: int, keep: float = 1.0) -> Trace:
    """Requests with Gamma-distributed times between them: in operational time (the integral of the rate) the gaps
    have mean 1 and the cv of the moment. Each is kept with the chance `keep`. Lengths are drawn, a pair at a time, from
    `lengths`."""
    random = np.random.default_rng(seed)
    grid = np.arange(0.0, series.duration_s + 1.0, 1.0)
    rate, _ = series.at(grid)
    expected = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    parts: list[Floats] = []
    at = 0.0
    for index in range(len(series.rate)):
        until = float(np.interp((index + 1) * series.window_s, grid, expected))
        gaps = _gamma_gaps(random, float(series.cv[index]), until - at)
        marks = at + np.cumsum(gaps)
        marks = marks[marks < until]
        parts.append(marks if keep >= 1.0 else marks[random.random(len(marks)) < keep])
        at = until
    marks = np.concatenate(parts)
    drawn = random.integers(0, len(lengths.prompt), len(marks))
    return Trace(
        series.name,
        np.interp(marks, expected, grid),
        lengths.prompt[drawn],
        lengths.output[drawn],
        series.duration_s,
    )


def _gamma_gaps(random: np.random.Generator, cv: float, expected: float) -> Floats:
    """Gaps of mean 1 whose sum exceeds `expected`."""
    shape = 1.0 / max(cv, 1e-3) ** 2
    drawn = random.gamma(shape, 1.0 / shape, max(16, int(expected * 1.2 + 8 * cv * np.sqrt(expected + 1))))
    while drawn.sum() < expected:
        drawn = np.concatenate((drawn, random.gamma(shape, 1.0 / shape, len(drawn))))
    return np.asarray(drawn)


def _sorted(trace: Trace) -> Trace:
    order = np.argsort(trace.arrival_s, kind="stable").astype(np.int64)
    last = float(trace.arrival_s.max()) if len(trace) else 0.0
    return replace(trace.take(order), duration_s=max(trace.duration_s, last))
