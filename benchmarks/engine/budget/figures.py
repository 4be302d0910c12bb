"""From a replay to the numbers of a table, and from several rounds to medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.engine.budget.replay import Outcome, Targets


@dataclass(frozen=True)
class Figures:
    """Of one policy; times in ms."""

    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    itl_p50: float
    itl_p95: float
    itl_p99: float
    itl_max: float
    tokens_per_s: float  # output
    occupancy: float  # mean share of the pool in use, over the time of steps
    occupancy_max: float
    good: float  # share of requests that met both targets
    goodput: float  # of them, a second
    smooth: float  # share of requests that met both targets and had no gap of twice the one between tokens
    cached: float  # share of prompt tokens found
    preemptions: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share - 1e-9) - 1)] if ordered else 0.0


def figures(outcome: Outcome, prompt_tokens: int, targets: Targets) -> Figures:
    """Of one replay."""
    records = list(outcome.records.values())
    ttft = [1000 * record.ttft for record in records]
    gaps = [1000 * gap for record in records for gap in record.gaps]
    tokens = sum(len(record.times) for record in records)
    good = sum(record.good(targets) for record in records)
    steps = outcome.steps
    return Figures(
        ttft_p50=percentile(ttft, 0.5),
        ttft_p95=percentile(ttft, 0.95),
        ttft_p99=percentile(ttft, 0.99),
        itl_p50=percentile(gaps, 0.5),
        itl_p95=percentile(gaps, 0.95),
        itl_p99=percentile(gaps, 0.99),
        itl_max=max(gaps),
        tokens_per_s=tokens / outcome.end,
        occupancy=sum(step.took * step.used for step in steps) / sum(step.took for step in steps),
        occupancy_max=max(step.used for step in steps),
        good=good / len(records),
        goodput=good / outcome.end,
        smooth=sum(record.good(targets) and record.smooth(targets) for record in records) / len(records),
        cached=sum(record.cached for record in records) / prompt_tokens,
        preemptions=outcome.preemptions,
    )


def middle(rounds: Sequence[Figures]) -> Figures:
    """The median of each number over rounds."""
    rows = [asdict(one) for one in rounds]
    return Figures(**{name: median(row[name] for row in rows) for name in rows[0]})
