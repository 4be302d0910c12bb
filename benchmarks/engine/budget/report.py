"""Tables in Markdown, plots as SVG and all numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.engine.budget.campaign import LOAD, Trial
from benchmarks.engine.budget.figures import Figures, percentile
from benchmarks.engine.budget.gap import Gap
from benchmarks.engine.budget.replay import Outcome

from headrace.bench.svg import Axes, Line, lines

Gaps = dict[str, list[tuple[Gap, Gap]]]
COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("TTFT p50 / p95 / p99, ms", lambda f: f"{f.ttft_p50:.0f} / {f.ttft_p95:.0f} / {f.ttft_p99:.0f}"),
    (
        "ITL p50 / p95 / p99 / max, ms",
        lambda f: f"{f.itl_p50:.1f} / {f.itl_p95:.1f} / {f.itl_p99:.1f} / {f.itl_max:.0f}",
    ),
    ("tokens/s", lambda f: f"{f.tokens_per_s:.0f}"),
    ("pool used, mean / max", lambda f: f"{f.occupancy:.0%} / {f.occupancy_max:.0%}"),
    ("good", lambda f: f"{f.good:.0%}"),
    ("good and smooth", lambda f: f"{f.smooth:.0%}"),
    ("good/s", lambda f: f"{f.goodput:.2f}"),
)


def replay_table(trial: Trial) -> str:
    """One row a policy."""
    head = "| policy | " + " | ".join(name for name, _ in COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1)
    rows = [
        f"| {name} | " + " | ".join(show(found) for _, show in COLUMNS) + " |" for name, found in trial.medians.items()
    ]
    return "\n".join((head, *rows))


def gap_table(found: Gaps) -> str:
    """One row a policy; medians over rounds, and the worst round."""
    head = (
        "| budget | median gap, ms | largest, ms | largest ÷ median | worst round | by the wall's clock | TTFT, ms |"
        "\n|---|---|---|---|---|---|---|"
    )
    rows = [head]
    for name, pairs in found.items():
        cpu = [one for one, _ in pairs]
        wall = [one for _, one in pairs]
        rows.append(
            f"| {name} | {median(g.median for g in cpu):.1f} | {median(g.largest for g in cpu):.1f} "
            f"| {median(g.ratio for g in cpu):.1f} | {max(g.ratio for g in cpu):.1f} "
            f"| {median(g.ratio for g in wall):.1f} | {median(g.ttft for g in cpu):.0f} |"
        )
    return "\n".join(rows)


def described(trial: Trial) -> str:
    """What was offered, and what was promised."""
    requests = trial.workload.requests
    prompts = [one.prompt for one in requests]
    outputs = [one.output for one in requests]
    return (
        f"{len(requests)} requests; prompt p50 / p90 {percentile(prompts, 0.5):.0f} / {percentile(prompts, 0.9):.0f} "
        f"tokens, answer {percentile(outputs, 0.5):.0f} / {percentile(outputs, 0.9):.0f}; "
        f"{LOAD * trial.capacity:.2f} requests/s ({LOAD:.0%} of what steps of 512 tokens take offline); targets: TTFT "
        f"{1000 * trial.targets.ttft_s:.0f} ms, {1000 * trial.targets.tpot_s:.1f} ms a token; "
        f"{next(iter(trial.medians.values())).cached:.0%} of prompt tokens found in the cache."
    )


def write_trial(folder: Path, trial: Trial) -> None:
    """A section, its plots and its numbers."""
    name = trial.workload.name
    parts = [f"## {trial.workload.title}\n\n{described(trial)}\n\n{replay_table(trial)}\n"]
    parts.append(f"![gaps](itl-{name}.svg)\n![first tokens](ttft-{name}.svg)\n![pages](pool-{name}.svg)\n")
    (folder / f"itl-{name}.svg").write_text(_distribution(trial, "gaps between tokens", _gaps, 99.9))
    (folder / f"ttft-{name}.svg").write_text(_distribution(trial, "time to first token", _firsts, 99.0))
    (folder / f"pool-{name}.svg").write_text(_pool(trial))
    error = f"median error of a step {trial.error:.0%}"
    parts.append(f"By the step-time model ({error}), over load:\n\n![load](load-{name}.svg)\n")
    (folder / f"load-{name}.svg").write_text(_load(trial))
    (folder / f"{name}.md").write_text("\n".join(parts))
    (folder / f"{name}.json").write_text(json.dumps(_numbers(trial), indent=1) + "\n")


def write_gap(folder: Path, found: Gaps) -> None:
    """The table and its numbers."""
    (folder / "gap.md").write_text(f"## A prompt of 2,000 tokens beside eight streams\n\n{gap_table(found)}\n")
    numbers = {name: [{"cpu": asdict(a), "wall": asdict(b)} for a, b in pairs] for name, pairs in found.items()}
    (folder / "gap.json").write_text(json.dumps(numbers, indent=1) + "\n")


def _in_order(trial: Trial) -> list[tuple[str, Outcome]]:
    """The last round, in the table's order."""
    return [(name, trial.shown[name]) for name in trial.medians]


def _gaps(outcome: Outcome) -> list[float]:
    return [1000 * gap for record in outcome.records.values() for gap in record.gaps]


def _firsts(outcome: Outcome) -> list[float]:
    return [1000 * record.ttft for record in outcome.records.values()]


def _distribution(trial: Trial, title: str, of: Callable[[Outcome], list[float]], until: float) -> str:
    """A line a policy: which share (x, %) is at most so long (y, ms)."""
    shares = [s / 2 for s in range(2, 199)] + [99.2, 99.4, 99.6, 99.8, 99.9]
    shares = [s for s in shares if s <= until]
    series = []
    for name, outcome in _in_order(trial):
        values = of(outcome)
        series.append(Line(name, shares, [percentile(values, s / 100) for s in shares]))
    return lines(Axes(f"{trial.workload.name}: {title}, by percentile", "percentile", "ms"), series)


def _pool(trial: Trial) -> str:
    """A line a policy: pages in use over time."""
    series = []
    for name, outcome in _in_order(trial):
        steps = outcome.steps[:: max(1, len(outcome.steps) // 300)]
        series.append(Line(name, [step.end for step in steps], [100 * step.used for step in steps]))
    return lines(Axes(f"{trial.workload.name}: pages in use", "s", "% of the pool"), series)


def _load(trial: Trial) -> str:
    series = [
        Line(name, [100 * load for load, _ in points], [100 * found.smooth for _, found in points])
        for name, points in trial.sweep.items()
    ]
    return lines(Axes(f"{trial.workload.name}: good and smooth requests, by load (modelled)", "load, %", "%"), series)


def _numbers(trial: Trial) -> dict[str, object]:
    return {
        "requests": len(trial.workload.requests),
        "capacity_per_s": trial.capacity,
        "targets": asdict(trial.targets),
        "rounds": {name: [_rounded(one) for one in rounds] for name, rounds in trial.rounds.items()},
        "model_error": round(trial.error, 4),
        "sweep": {
            name: [{"load": load, **_rounded(one)} for load, one in points] for name, points in trial.sweep.items()
        },
    }


def _rounded(found: Figures) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(found).items()}
