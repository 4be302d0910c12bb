"""One day of a rate-only series by discrete events: thinned to RATE requests/s, on engines that are as much slower.

Rule. The arrivals are the Gamma renewal process of the series at the fleet's size, over its first day, each request
kept by chance so that RATE/s remain on the mean. So that they still need MEAN_REPLICAS replicas, the engine takes
`weight` times as long for every token: weight = MEAN_REPLICAS * USUAL_RHO / (RATE * work of the mean request). Its
steps keep their length: the fixed part is as it is, and a step takes 1 / weight of the prompt tokens. Memory and slots
are not scaled; the service levels follow from the slower engine by the rule of all traces. The rules that hindsight
found best on the series are searched again on the fluid model of that very day: the best setting there and the
controller replay it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from headrace.bench import cells, check, demand
from headrace.bench.arrivals import renewal
from headrace.bench.cells import Grid, Row
from headrace.bench.check import Part
from headrace.bench.profile import Mix, Profile
from headrace.bench.trace import Lengths, Series, Trace
from headrace.bench.verdict import verdicts

RATE = 5.0  # requests/s, mean of the day
DAY_S = 86_400.0
FLUID, DISCRETE = "fluid-day", "discrete-day"  # models of the rows
DT_S = 1.0  # of the fluid model
MARGIN_S = 0.0  # of the gateway's deadline: as it is


def thinned(series: Series, lengths: Lengths | Trace, profile: Profile, seed: int) -> Trace:
    """The requests of the first day."""
    day = series.first(min(1.0, DAY_S / series.duration_s))
    copies = demand.copies_for(float(series.rate.mean()), Mix.of(profile, lengths.prompt, lengths.output))
    whole = demand.scaled(day, copies)
    return renewal(whole, lengths, seed, min(1.0, RATE / float(whole.rate.mean())))


def slower(profile: Profile, lengths: Lengths | Trace) -> Profile:
    """The engine of which RATE requests/s fill MEAN_REPLICAS."""
    work = Mix.of(profile, lengths.prompt, lengths.output).work_s
    weight = demand.MEAN_REPLICAS * demand.USUAL_RHO / (RATE * work)
    return msgspec.structs.replace(
        profile,
        name=f"{profile.name} / {weight:.1f}",
        per_sequence_seconds=profile.per_sequence_seconds * weight,
        per_kv_token_seconds=profile.per_kv_token_seconds * weight,
        per_prefill_token_seconds=profile.per_prefill_token_seconds * weight,
        per_prefill_pair_seconds=profile.per_prefill_pair_seconds * weight,
        max_batch_tokens=max(1, round(profile.max_batch_tokens / weight)),
    )


def run(series: Series, lengths: Lengths | Trace, profile: Profile, rows: Sequence[Row], seed: int) -> Iterator[Row]:
    """Rows of both models for the day, in the cells of `rows`, which are the series' own: the controller, and the
    rules that were the best of hindsight there."""
    rules = {v.best_tuned.policy for v in verdicts(rows) if v.best_tuned is not None}
    colds = sorted({row.cold_start for row in rows})
    engine, trace = slower(profile, lengths), thinned(series, lengths, profile, seed)
    day = replace(demand.of_trace(trace, engine, DT_S), name=series.name)
    grid = Grid(tuple(colds), oracle=False, baselines=bool(rules), rules=tuple(sorted(rules)))
    fluid = cells.run(day, engine, grid)
    yield from (msgspec.structs.replace(row, model=FLUID) for row in fluid)
    for row in check.run(trace, engine, fluid, seed, Part(len(trace), (MARGIN_S,))):
        yield msgspec.structs.replace(row, model=DISCRETE)
