"""The report of the autoscaling benchmark: Markdown with SVG plots, the worst cells first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.bench import days, svg
from headrace.bench.cells import Row
from headrace.bench.demand import MEAN_REPLICAS
from headrace.bench.verdict import Summary, Verdict, verdicts

HEAD = """# Autoscaling: the production controller against other autoscalers, and against perfect foresight

Made by

```
{commands}
```

A request is good if it meets its class's targets of time to first token and of time per output token; shed requests
are not good. `attainment` = good / offered. `x oracle` = replica-seconds over a lower bound that knows the future
(it may be below 1 where the objective was missed). Every parameter of the production controller is the same in every
cell. `perfect foresight would save`: the oracle's replica-seconds against the same default's, so the most that can be
saved there. Other autoscalers run with their documented defaults, and tuned with hindsight: by grid search, for each
cell, the cheapest setting that meets the objective, or where none does the one that attains most (`best tuned`: the
cheapest of these). `cheapest as good`: of all settings of all grids that attain at least what the controller does.
"""


def write(rows: Sequence[Row], folder: Path, commands: Sequence[str]) -> Path:
    """Write report.md and its plots into a folder; the report's path."""
    cells = verdicts(rows)
    text = [
        HEAD.format(commands="\n".join(commands)),
        _summary(Summary.of(cells)),
        *_plots(cells, folder),
        _table(cells),
    ]
    text += [
        _unreachable(cells),
        _checked(rows),
        days_table(rows),
        _details([row for row in rows if row.model == "fluid"]),
    ]
    path = folder / "report.md"
    path.write_text("\n".join(part for part in text if part))
    return path


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _summary(summary: Summary) -> str:
    lines = [
        (
            "the objective is met",
            f"{summary.met} cells; some policy, hindsight included, meets it in {summary.reachable}",
        ),
        (
            "dominated by a baseline with its defaults: more attainment, fewer replica-seconds",
            summary.dominated_by_default,
        ),
        ("dominated by the best baseline tuned with hindsight", summary.dominated_by_best_tuned),
        ("dominated by any of the baselines tuned with hindsight", summary.dominated_by_tuned),
        (
            "median saving to the cheapest default with at least our attainment",
            _percent(summary.median_saved_to_default),
        ),
        ("what perfect foresight would save there, median", _percent(summary.median_oracle_saved)),
        ("share of that which is saved, median", _percent(summary.median_share_saved)),
        (
            "median replica-seconds over the best tuned with hindsight, at its attainment or the objective",
            _ratio(summary.median_to_tuned),
        ),
        (
            "median replica-seconds over the cheapest of all settings tried that attains as much as ours; there is "
            f"one in {summary.tuned_as_good} cells",
            _ratio(summary.median_to_tuned_as_good),
        ),
        ("median replica-seconds over the oracle, where the objective is met", _ratio(summary.median_to_oracle)),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in lines)
    return f"## Over all {summary.cells} cells\n\n| | |\n|---|---|\n{table}\n"


def _plots(cells: Sequence[Verdict], folder: Path) -> list[str]:
    ordered = sorted(cells, key=lambda v: v.key)
    met = [v for v in ordered if v.ours.meets and v.to_oracle is not None]
    plots = (
        ("oracle.svg", "Replica-seconds over the oracle, cells that meet the objective", "x oracle",
         [(v, v.to_oracle or 0.0) for v in met], 1.25),
        ("attainment.svg", "Attainment by cell", "good / offered", [(v, v.ours.attainment) for v in ordered],
         ordered[0].ours.objective if ordered else 1.0),
    )  # fmt: skip
    links = []
    for name, title, unit, values, mark in plots:
        if values:
            labels = [str(i + 1) for i in range(len(values))]
            axes = svg.Axes(title, "cell, in the order of the list below", unit)
            (folder / name).write_text(svg.bars(axes, labels, [value for _, value in values], mark))
            listed = ", ".join(f"{i + 1} {_name(v)}" for i, (v, _) in enumerate(values))
            links.append(f"![{title}]({name})\n\n<details><summary>cells of the plot</summary>{listed}</details>\n")
    return links


def _name(verdict: Verdict) -> str:
    trace, cold, slo = verdict.key
    return f"{trace} / {cold:g} s / {slo}"


def _table(cells: Sequence[Verdict]) -> str:
    rows = [
        "## Cells, the worst first\n",
        "| trace | cold start | SLO | attainment | most by any | x oracle | actions/h | recovery s | "
        "saved to the cheapest default as good | perfect foresight would save | x best tuned | x cheapest as good | "
        "dominated by |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for v in cells:
        dominated = [f"{name} (defaults)" for name in v.dominated_by_default] + list(v.dominated_by_tuned)
        rows.append(
            f"| {v.key[0]} | {v.key[1]:g} | {v.key[2]} | {v.ours.attainment:.4f} | {v.most_attained:.4f} | "
            f"{_ratio(v.to_oracle)} | {v.ours.actions_per_hour:.1f} | {v.ours.recovery_seconds:.0f} | "
            f"{_percent(v.saved_to_default)} | {_percent(v.oracle_saved_to_default)} | {_ratio(v.to_tuned)} | "
            f"{_ratio(v.to_tuned_as_good)} | {', '.join(dominated) or '–'} |"
        )
    return "\n".join(rows) + "\n"


def _unreachable(cells: Sequence[Verdict]) -> str:
    missed = [v for v in cells if v.most_attained < v.ours.objective]
    if not missed:
        return ""
    lines = ["## Cells in which no policy meets the objective\n"]
    for v in missed:
        lines.append(
            f"- {_name(v)}: the most that any policy attains is {v.most_attained:.4f}, ours {v.ours.attainment:.4f}. "
            "What the gateway admitted was good: requests that could no longer begin in time were shed, "
            f"{100 * (1 - v.ours.attainment):.1f} % of the offered."
        )
    return "\n".join(lines) + "\n"


CHECK = """## Checked by discrete events

The controller, and the best baseline that hindsight finds, once more: single requests, engines step by step, the
production queue and choice of a replica. `margin`: what the gateway's deadline leaves to the engine beside the own
prefill. 0 is the production queue as it is; 0.25 s is what the fluid model supposes.

| trace | cold start | SLO | policy | margin s | attainment | fluid | replica-seconds | fluid | actions/h |
|---|---|---|---|---|---|---|---|---|---|"""


def _checked(rows: Sequence[Row]) -> str:
    fluid = {(r.trace, r.cold_start, r.slo, r.policy, r.tuned): r for r in rows if r.model == "fluid"}
    lines = []
    for row in rows:
        if row.model != "discrete":
            continue
        other = fluid[row.trace, row.cold_start, row.slo, row.policy, row.tuned]
        lines.append(
            f"| {row.trace} | {row.cold_start:g} | {row.slo} | {row.policy} | {row.margin_seconds:g} | "
            f"{row.attainment:.4f} | {other.attainment:.4f} | {row.replica_seconds:.0f} | "
            f"{other.replica_seconds:.0f} | {row.actions_per_hour:.1f} |"
        )
    return "\n".join((CHECK, *lines)) + "\n" if lines else ""


DAYS = """## One day of each series, checked by discrete events

The first day, thinned by chance to {rate:g} requests/s on the mean, on engines that are as much slower per token that
the mean demand is again that of {replicas:g} replicas. Both models replay the same requests: the controller, and the
best setting for that day of the rule that hindsight found best on the series. `series`: the fluid model at the full
rate, with the setting that was best there. The queue is production's as it is.

| trace | cold start | SLO | policy | attainment | fluid | series | replicas, mean | fluid | actions/h | parameters |
|---|---|---|---|---|---|---|---|---|---|---|"""


def days_table(rows: Sequence[Row]) -> str:
    """The days that were checked by discrete events; empty where none was."""
    found = {(r.model, r.trace, r.cold_start, r.slo, r.policy, r.tuned): r for r in rows}
    lines = []
    for row in rows:
        if row.model != days.DISCRETE:
            continue
        key = (row.trace, row.cold_start, row.slo, row.policy, row.tuned)
        fluid, series = found[days.FLUID, *key], found.get(("fluid", *key))
        lines.append(
            f"| {row.trace} | {row.cold_start:g} | {row.slo} | {row.policy} | "
            f"{row.attainment:.4f} | {fluid.attainment:.4f} | {f'{series.attainment:.4f}' if series else '–'} | "
            f"{row.replica_seconds / days.DAY_S:.2f} | {fluid.replica_seconds / days.DAY_S:.2f} | "
            f"{row.actions_per_hour:.1f} | {_settings(row)} |"
        )
    head = DAYS.format(rate=days.RATE, replicas=MEAN_REPLICAS)
    return "\n".join((head, *lines)) + "\n" if lines else ""


def _settings(row: Row) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in row.parameters.items())


def _details(rows: Sequence[Row]) -> str:
    lines = [
        "## Every policy in every cell\n",
        "| trace | cold start | SLO | policy | tuned | attainment | x oracle | actions/h | recovery s | parameters |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r.trace, r.cold_start, r.slo, r.tuned, r.policy)):
        oracle = row.replica_seconds / row.oracle_replica_seconds if row.oracle_replica_seconds else None
        lines.append(
            f"| {row.trace} | {row.cold_start:g} | {row.slo} | {row.policy} | {'yes' if row.tuned else ''} | "
            f"{row.attainment:.4f} | {_ratio(oracle)} | {row.actions_per_hour:.1f} | {row.recovery_seconds:.0f} | "
            f"{_settings(row)} |"
        )
    return "\n".join(lines) + "\n"
