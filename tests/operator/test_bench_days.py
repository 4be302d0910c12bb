"""One day of a series by discrete events: what is thinned, what is slower, and that both models see the same day."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench import autoscaling, days, demand, profile, report
from headrace.bench.cells import Grid, Row
from headrace.bench.production import NAME
from headrace.bench.profile import Capacity, Mix
from headrace.bench.trace import Lengths, Series

H100 = profile.load("h100-8b")
LENGTHS = Lengths("some", np.array([200, 1000, 1800, 4000]), np.array([50, 100, 250, 400]))
HOUR = Series("hour", 600.0, np.array([100.0, 200.0, 400.0, 300.0, 100.0, 100.0]), np.full(6, 2.0))


def test_a_day_is_thinned_to_the_rate_and_keeps_its_shape() -> None:
    trace = days.thinned(HOUR, LENGTHS, H100, 1)
    assert trace.rate == pytest.approx(days.RATE, rel=0.05)
    assert trace.duration_s == HOUR.duration_s and (np.diff(trace.arrival_s) >= 0).all()
    counts = np.histogram(trace.arrival_s, bins=6, range=(0, 3600))[0]
    at = np.arange(3600.0)
    wanted = HOUR.at(at)[0].reshape(6, 600).mean(axis=1)
    assert counts / counts.sum() == pytest.approx(wanted / wanted.sum(), rel=0.15)


def test_thinning_by_chance_leaves_little_of_the_bursts() -> None:
    """Of a process with variance V over the mean, thinned to a share p, 1 + p (V - 1) is left."""
    steady = Series("steady", 600.0, np.full(6, 80.0), np.full(6, 3.0))
    counts = np.histogram(days.thinned(steady, LENGTHS, H100, 1).arrival_s, bins=720)[0]
    kept = days.RATE / (80.0 * demand.copies_for(80.0, Mix.of(H100, LENGTHS.prompt, LENGTHS.output)))
    assert counts.var() / counts.mean() == pytest.approx(1 + kept * 8, rel=0.2)


def test_only_the_first_day_of_a_longer_series_counts() -> None:
    week = Series("week", 3600.0, np.concatenate((np.full(24, 10.0), np.full(144, 90.0))), np.ones(168))
    assert days.thinned(week, LENGTHS, H100, 1).duration_s == days.DAY_S
    assert days.thinned(week, LENGTHS, H100, 1).rate == pytest.approx(days.RATE, rel=0.05)


def test_the_slower_engine_needs_the_usual_fleet_and_keeps_its_steps() -> None:
    engine = days.slower(H100, LENGTHS)
    mix = Mix.of(engine, LENGTHS.prompt, LENGTHS.output)
    assert days.RATE * mix.work_s / demand.USUAL_RHO == pytest.approx(demand.MEAN_REPLICAS)
    full = engine.step_seconds + engine.max_batch_tokens * engine.per_prefill_token_seconds
    assert full == pytest.approx(H100.step_seconds + H100.max_batch_tokens * H100.per_prefill_token_seconds, rel=0.02)
    before, after = (Capacity.of(p, Mix.of(p, LENGTHS.prompt, LENGTHS.output), 0.04) for p in (H100, engine))
    assert after.rho == pytest.approx(before.rho, rel=0.02)  # the same share of a replica's time is work


def _row(policy: str, cost: float, **more: object) -> Row:
    return Row(
        trace="hour", cold_start=30.0, slo="tight", policy=policy, attainment=0.97, goodput=1.0, replica_seconds=cost,
        oracle_replica_seconds=1.0, actions_per_hour=1.0, recovery_seconds=0.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


SERIES = [_row(NAME, 3.0), _row("hpa-in-flight", 2.0, tuned=True), _row("keda-waiting", 4.0, tuned=True)]


def test_a_day_gives_rows_of_both_models_and_a_table() -> None:
    rows = list(days.run(HOUR.first(0.34), LENGTHS, H100, SERIES, 1))
    fluid, discrete = ([r for r in rows if r.model == m] for m in (days.FLUID, days.DISCRETE))
    assert len(rows) == len(fluid) + len(discrete)
    assert {(r.policy, r.tuned) for r in fluid} == {(NAME, False), ("hpa-in-flight", False), ("hpa-in-flight", True)}
    assert {(r.slo, r.policy, r.tuned, r.margin_seconds) for r in discrete} == {
        (slo, policy, tuned, 0.0)
        for slo in ("tight", "loose")
        for policy, tuned in ((NAME, False), ("hpa-in-flight", True))
    }
    by_key = {(r.slo, r.policy, r.tuned): r for r in fluid}
    assert all(r.parameters == by_key[r.slo, r.policy, r.tuned].parameters for r in discrete)
    table = report.days_table([*SERIES, *rows])
    assert table.count("\n| hour | 30 | ") == 4 and "5 requests/s" in table
    assert "| 0.9700 |" in next(line for line in table.splitlines() if f"| tight | {NAME} |" in line)
    assert report.days_table([r for r in rows if r.model == days.FLUID]) == ""


def test_the_command_checks_a_series_by_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, set[float]]] = []

    def note(series: Series, lengths: object, engine: object, rows: list[Row], seed: int) -> list[Row]:
        asked.append((series.name, {row.cold_start for row in rows}))
        return []

    monkeypatch.setattr(autoscaling.days, "run", note)
    options = autoscaling.Options(
        traces=("servegen_mm-image_rate_10min",), grid=Grid((30.0,), oracle=False, baselines=False), fraction=0.02,
        check=True,
    )  # fmt: skip
    assert {row.model for row in list(autoscaling.run(options))[-1]} == {"fluid"}
    assert asked == [("servegen_mm-image_rate_10min@0.02", {30.0})]
