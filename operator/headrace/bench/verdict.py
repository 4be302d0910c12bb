"""What the rows say of the production controller in each cell, and over all cells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.bench.cells import Row
from headrace.bench.production import NAME

CellKey = tuple[str, float, str]
"""(trace, cold start in seconds, service level)."""


@dataclass(frozen=True)
class Verdict:
    """One cell. Ratios are of replica-seconds; None = there is nothing to compare with."""

    key: CellKey
    ours: Row
    to_oracle: float | None
    cheapest_default: Row | None  # with documented defaults, of those with at least our attainment
    best_tuned: Row | None  # fewest replica-seconds of those that hindsight brings to the objective, else the best
    dominated_by_default: tuple[str, ...]
    dominated_by_tuned: tuple[str, ...]
    tuned_as_good: float | None  # fewest replica-seconds of all settings of all grids that attain at least as much
    most_attained: float  # by any policy here, causal ones without exception

    @property
    def saved_to_default(self) -> float | None:
        """Share of the replica-seconds of the cheapest default with at least our attainment."""
        other = self.cheapest_default
        return None if other is None else 1.0 - self.ours.replica_seconds / other.replica_seconds

    @property
    def oracle_saved_to_default(self) -> float | None:
        """What perfect foresight would save of the same default's: more is not to be had while the objective is met."""
        other, oracle = self.cheapest_default, self.ours.oracle_replica_seconds
        return None if other is None or not oracle else 1.0 - oracle / other.replica_seconds

    @property
    def share_saved(self) -> float | None:
        """What we save of what perfect foresight would; None where it would save nothing."""
        saved, most = self.saved_to_default, self.oracle_saved_to_default
        return None if saved is None or most is None or most <= 0 else saved / most

    @property
    def to_tuned(self) -> float | None:
        """Our replica-seconds over the best that hindsight finds, where we attain as much, or the objective."""
        other = self.best_tuned
        if other is None or self.ours.attainment < min(other.attainment, self.ours.objective):
            return None
        return self.ours.replica_seconds / other.replica_seconds

    @property
    def to_tuned_as_good(self) -> float | None:
        """Our replica-seconds over the fewest that hindsight finds for at least our attainment; None: it finds none."""
        return None if self.tuned_as_good is None else self.ours.replica_seconds / self.tuned_as_good

    @property
    def dominated_by_best_tuned(self) -> bool:
        """Does the best that hindsight finds attain more for less?"""
        return self.best_tuned is not None and dominates(self.best_tuned, self.ours)

    @property
    def badness(self) -> tuple[float, float]:
        """For sorting, the worst first: what lacks in attainment, then cost."""
        reachable = min(self.ours.objective, self.most_attained)
        return max(0.0, reachable - self.ours.attainment), self.to_oracle or 0.0


def verdicts(rows: Iterable[Row]) -> list[Verdict]:
    """By cell, the worst first."""
    cells: dict[CellKey, list[Row]] = {}
    for row in rows:
        if row.model != "fluid":
            continue
        cells.setdefault((row.trace, row.cold_start, row.slo), []).append(row)
    found = [v for key, members in cells.items() if (v := _verdict(key, members)) is not None]
    return sorted(found, key=lambda v: v.badness, reverse=True)


def _verdict(key: CellKey, rows: Sequence[Row]) -> Verdict | None:
    ours = next((row for row in rows if row.policy == NAME), None)
    if ours is None:
        return None
    others = [row for row in rows if row.policy != NAME]
    defaults, tuned = [r for r in others if not r.tuned], [r for r in others if r.tuned]
    as_good = [r for r in defaults if r.attainment >= ours.attainment]
    meeting = [r for r in tuned if r.meets]
    best = min(meeting, key=_cost) if meeting else max(tuned, key=lambda r: r.attainment, default=None)
    frontiers = [point for row in tuned for point in (row.frontier or ((row.attainment, row.replica_seconds),))]
    return Verdict(
        key=key,
        ours=ours,
        to_oracle=ours.replica_seconds / ours.oracle_replica_seconds if ours.oracle_replica_seconds else None,
        cheapest_default=min(as_good, key=_cost, default=None),
        best_tuned=best,
        dominated_by_default=tuple(r.policy for r in defaults if dominates(r, ours)),
        dominated_by_tuned=tuple(r.policy for r in tuned if dominates(r, ours)),
        tuned_as_good=min((cost for attained, cost in frontiers if attained >= ours.attainment), default=None),
        most_attained=max(r.attainment for r in rows),
    )


def dominates(one: Row, other: Row) -> bool:
    """Both more attainment and fewer replica-seconds."""
    return one.attainment > other.attainment and one.replica_seconds < other.replica_seconds


def _cost(row: Row) -> float:
    return row.replica_seconds


@dataclass(frozen=True)
class Summary:
    """Over all cells."""

    cells: int
    met: int  # where we reach the objective
    reachable: int  # where any policy does
    dominated_by_default: int
    dominated_by_tuned: int
    dominated_by_best_tuned: int
    median_saved_to_default: float | None
    median_oracle_saved: float | None  # to the same defaults
    median_share_saved: float | None  # of what perfect foresight would save, where that is anything
    median_to_tuned: float | None
    tuned_as_good: int  # cells in which hindsight finds a setting that attains at least as much
    median_to_tuned_as_good: float | None
    median_to_oracle: float | None  # of the cells where we reach the objective

    @classmethod
    def of(cls, cells: Sequence[Verdict]) -> Summary:
        """The summary of all verdicts."""
        met = [v for v in cells if v.ours.meets]
        return cls(
            cells=len(cells),
            met=len(met),
            reachable=sum(v.most_attained >= v.ours.objective for v in cells),
            dominated_by_default=sum(bool(v.dominated_by_default) for v in cells),
            dominated_by_tuned=sum(bool(v.dominated_by_tuned) for v in cells),
            dominated_by_best_tuned=sum(v.dominated_by_best_tuned for v in cells),
            median_saved_to_default=_median(v.saved_to_default for v in cells),
            median_oracle_saved=_median(v.oracle_saved_to_default for v in cells),
            median_share_saved=_median(v.share_saved for v in cells),
            median_to_tuned=_median(v.to_tuned for v in cells),
            tuned_as_good=sum(v.tuned_as_good is not None for v in cells),
            median_to_tuned_as_good=_median(v.to_tuned_as_good for v in cells),
            median_to_oracle=_median(v.to_oracle for v in met),
        )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
