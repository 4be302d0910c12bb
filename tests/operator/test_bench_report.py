"""Verdicts, plots, the calibration, and the whole command on a tenth of a trace."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench import autoscaling, calibrate, profile, svg
from headrace.bench.cells import Row, pareto
from headrace.bench.production import NAME
from headrace.bench.verdict import Summary, dominates, verdicts
from headrace.cli.main import main


def _row(policy: str, attainment: float, cost: float, **more: object) -> Row:
    return Row(
        trace="t", cold_start=30.0, slo="tight", policy=policy, attainment=attainment, goodput=1.0,
        replica_seconds=cost, oracle_replica_seconds=100.0, actions_per_hour=1.0, recovery_seconds=0.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


ROWS = [
    _row(NAME, 0.97, 150.0),
    _row("a", 0.98, 200.0),
    _row("b", 0.90, 120.0),
    _row("c", 0.99, 140.0),
    _row("a", 0.96, 145.0, tuned=True),
    _row("b", 0.94, 110.0, tuned=True),
    _row("c", 0.99, 140.0, tuned=True),
    _row("c", 0.10, 1.0, tuned=True, model="discrete"),
]


def test_verdict_of_a_cell() -> None:
    (verdict,) = verdicts(ROWS)
    assert verdict.to_oracle == 1.5
    assert verdict.cheapest_default is not None and verdict.cheapest_default.policy == "c"
    assert verdict.saved_to_default == pytest.approx(1 - 150 / 140)
    assert verdict.oracle_saved_to_default == pytest.approx(1 - 100 / 140)
    assert (verdict.dominated_by_default, verdict.dominated_by_tuned) == (("c",), ("c",))
    assert verdict.best_tuned is not None and verdict.best_tuned.policy == "c"  # the cheapest that meets 0.95
    assert verdict.to_tuned == pytest.approx(150 / 140)


def test_where_nobody_meets_the_objective_the_most_attained_counts() -> None:
    rows = [_row(NAME, 0.90, 150.0), _row("a", 0.93, 300.0, tuned=True), _row("b", 0.91, 100.0, tuned=True)]
    (verdict,) = verdicts(rows)
    assert verdict.best_tuned is not None and verdict.best_tuned.policy == "a"
    assert verdict.to_tuned is None  # we attain less
    assert verdict.dominated_by_tuned == ("b",)
    summary = Summary.of([verdict])
    assert (summary.cells, summary.met, summary.reachable, summary.dominated_by_tuned) == (1, 0, 0, 1)


def test_what_is_saved_is_told_beside_what_perfect_foresight_would_save() -> None:
    (verdict,) = verdicts([_row(NAME, 0.97, 150.0), _row("a", 0.98, 200.0), _row("b", 0.90, 120.0)])
    assert verdict.saved_to_default == pytest.approx(0.25)
    assert verdict.oracle_saved_to_default == pytest.approx(0.5)
    assert verdict.share_saved == pytest.approx(0.5)
    summary = Summary.of([verdict])
    assert (summary.median_oracle_saved, summary.median_share_saved) == (verdict.oracle_saved_to_default, 0.5)
    (alone,) = verdicts([_row(NAME, 0.97, 150.0), _row("b", 0.90, 120.0)])  # no default attains as much
    assert (alone.oracle_saved_to_default, alone.share_saved) == (None, None)
    (best,) = verdicts([_row(NAME, 0.97, 90.0), _row("a", 0.98, 100.0)])  # the default costs what the oracle does
    assert (best.oracle_saved_to_default, best.share_saved) == (0.0, None)


def test_hindsight_at_our_attainment_is_the_cheapest_of_all_settings_that_attain_as_much() -> None:
    fronts = {"a": ((0.95, 110.0), (0.975, 125.0), (0.99, 180.0)), "b": ((0.96, 90.0), (0.969, 100.0))}
    tuned = [_row(name, front[0][0], front[0][1], tuned=True, frontier=front) for name, front in fronts.items()]
    (verdict,) = verdicts([_row(NAME, 0.97, 150.0), *tuned])
    assert verdict.to_tuned == pytest.approx(150 / 90)
    assert verdict.to_tuned_as_good == pytest.approx(150 / 125)
    (beyond,) = verdicts([_row(NAME, 0.995, 150.0), *tuned])
    assert beyond.to_tuned_as_good is None, "hindsight finds no setting that attains as much"
    summary = Summary.of([verdict, beyond])
    assert (summary.tuned_as_good, summary.median_to_tuned_as_good) == (1, 150 / 125)


def test_the_best_of_hindsight_may_dominate_less_often_than_any() -> None:
    rows = [_row(NAME, 0.96, 150.0), _row("a", 0.951, 100.0, tuned=True), _row("b", 0.97, 140.0, tuned=True)]
    (verdict,) = verdicts(rows)
    assert verdict.dominated_by_tuned == ("b",) and not verdict.dominated_by_best_tuned
    (other,) = verdicts([_row(NAME, 0.96, 150.0), _row("b", 0.97, 140.0, tuned=True)])
    assert other.dominated_by_best_tuned
    assert Summary.of([verdict, other]).dominated_by_best_tuned == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=20))
def test_a_frontier_keeps_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    front = pareto([(a / 10, float(c)) for a, c in points])
    assert list(front) == sorted(front) and [c for _, c in front] == sorted(c for _, c in front)
    for a, c in points:
        cheapest = min(cost for attained, cost in points if attained >= a)
        assert min(cost for attained, cost in front if attained >= a / 10) == cheapest, (a, c)


def test_equal_rows_do_not_dominate_each_other() -> None:
    assert not dominates(_row("a", 0.9, 10.0), _row("b", 0.9, 10.0))
    assert not dominates(_row("a", 0.9, 9.0), _row("b", 0.9, 10.0))
    assert dominates(_row("a", 0.91, 9.0), _row("b", 0.9, 10.0))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0.0, 10.0, [0, 2, 4, 6, 8, 10]), (0.0, 0.95, [0, 0.2, 0.4, 0.6, 0.8]), (3.0, 3.0, [3.0])],
)
def test_ticks_are_round(low: float, high: float, wanted: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(wanted)


def test_plots_are_well_formed() -> None:
    text = svg.lines(svg.Axes("a < b", "x", "y"), [svg.Line("one & two", [0, 1, 2], [0.0, 5.0, 2.0])])
    root = ET.fromstring(text)
    points = root.find("{http://www.w3.org/2000/svg}polyline")
    assert points is not None and len(points.attrib["points"].split()) == 3
    bars = ET.fromstring(svg.bars(svg.Axes("t", "x", "y"), ["a", "b"], [1.0, 2.0], mark=1.5))
    assert len(bars.findall("{http://www.w3.org/2000/svg}rect")) == 3  # the ground and two bars
    assert svg.lines(svg.Axes("empty", "x", "y"), []).endswith("</svg>\n")


def test_calibration_finds_the_coefficients_again() -> None:
    random = np.random.default_rng(1)
    truth = np.array([0.01, 4e-4, 2e-6, 3e-4, 5e-8])
    steps = []
    for _ in range(60):
        sequences, context = int(random.integers(0, 33)), int(random.integers(50, 2000))
        prefill = ((int(random.integers(1, 512)), int(random.integers(0, 1000))),) if random.random() < 0.5 else ()
        step = calibrate.Step(seconds=1.0, sequences=sequences, kv_tokens=sequences * context, prefill=prefill)
        noise = 1 + 0.02 * random.normal()
        steps.append(msgspec.structs.replace(step, seconds=float(np.dot(step.features, truth)) * noise))
    fit = calibrate.fit(steps)
    assert np.abs(np.array(fit.coefficients) / truth - 1).max() < 0.25
    assert fit.held_out == 12 and fit.residual_percent < 4


def test_calibration_knows_no_negative_times() -> None:
    steps = [calibrate.Step(seconds=0.02 - 1e-4 * n, sequences=n, kv_tokens=0) for n in range(10)]
    assert min(calibrate.fit(steps).coefficients) >= 0
    with pytest.raises(ValueError, match="too few"):
        calibrate.fit(steps[:3])


def test_the_cpu_profile_is_the_fit_of_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    path = profile.FOLDER / "cpu-demo-steps.jsonl"
    assert main(["bench", "calibrate", str(path), "--name", "cpu-demo"]) == 0
    printed, kept = json.loads(capsys.readouterr().out), profile.load("cpu-demo")
    for name, value in json.loads(msgspec.json.encode(kept)).items():
        if name == "about":  # the kept one says which engine it was, too
            continue
        assert printed[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
    assert 0 < kept.residual_percent < 5


@pytest.mark.parametrize(
    ("count", "more", "name", "said"),
    [
        (30, [], "mine", "30 recorded steps in mine.jsonl (`headrace bench calibrate`), 6 of them held out"),
        (19, [], "mine", "19 recorded steps in mine.jsonl (`headrace bench calibrate`), the error is the fit's own"),
        (30, ["--name", "desk"], "desk", "All else is taken from the profile cpu-demo."),
        (30, ["--like", "h100-8b"], "mine", "All else is taken from the profile h100-8b."),
    ],
    ids=["held-out", "few", "named", "like"],
)
def test_a_fitted_profile_tells_what_it_was_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, more: list[str], name: str, said: str
) -> None:
    path = tmp_path / "mine.jsonl"
    steps = [calibrate.Step(seconds=0.01 + 0.001 * (n % 7), sequences=1 + n % 7, kv_tokens=9 * n) for n in range(count)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, steps)))
    assert main(["bench", "calibrate", str(path), *more]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["name"] == name and said in printed["about"]
    assert "107" not in printed["about"] and str(tmp_path) not in printed["about"]


@pytest.mark.parametrize(
    ("content", "like", "said"),
    [
        (
            b'{"seconds": 1, "sequences": 1}\n\n{"seconds": "x"}\n',
            "cpu-demo",
            "steps.jsonl, line 3: Expected `float`, got `str`",
        ),
        (b'{"seconds": 1, "sequences": 1}\n{\n', "cpu-demo", "steps.jsonl, line 2: "),
        (b'{"seconds": 1, "sequences": 1}\n', "cpu-demo", "steps.jsonl: 1 steps are too few"),
        (b'{"seconds": 0, "sequences": 1}\n', "cpu-demo", "steps.jsonl, line 1: Expected `float` > 0.0"),
        (b'{"seconds": 1, "sequences": -1}\n', "cpu-demo", "steps.jsonl, line 1: Expected `int` >= 0"),
        (b'{"seconds": 1}\n', "cpu-demo", "steps.jsonl, line 1: a step with neither sequences nor prefill"),
        (b"", "nosuch", "--like nosuch: no such profile; write one of cpu-demo, h100-8b, or a .json file"),
        (None, "cpu-demo", "steps.jsonl: No such file or directory"),
    ],
    ids=["a-field", "no-json", "too-few", "no-time", "negative", "no-work", "no-profile", "no-file"],
)
def test_calibration_says_where_the_fault_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, like: str, said: str
) -> None:
    path = tmp_path / "steps.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["bench", "calibrate", str(path), "--like", like]) == 2
    told = capsys.readouterr().err
    assert said in told and str(profile.FOLDER) not in told


def test_profiles_are_read_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert profile.names() == ["cpu-demo", "h100-8b"]
    path = tmp_path / "own.json"
    path.write_bytes(msgspec.json.encode(profile.load("h100-8b")))
    assert profile.load(str(path)) == profile.load("h100-8b")


def test_the_command_writes_results_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "autoscaling", "--trace", "azure_llm_2023_conv", "--fraction", "0.03", "--cold-start", "15"]
    assert main([*arguments, "--check", "--output", str(tmp_path / "one")]) == 0
    assert main([*arguments, "--output", str(tmp_path / "two")]) == 0
    assert "one/report.md" in capsys.readouterr().out
    rows = json.loads((tmp_path / "one/results.json").read_text())
    assert rows[: 2 * 15] == json.loads((tmp_path / "two/results.json").read_text())
    wanted = {
        "trace", "coldStart", "slo", "policy", "attainment", "goodput", "replicaSeconds", "oracleReplicaSeconds",
        "actionsPerHour", "recoverySeconds",
    }  # fmt: skip
    assert all(wanted <= set(row) for row in rows)
    fluid = [row for row in rows if row["model"] == "fluid"]
    assert len(fluid) == 2 * (1 + 2 * 7) and len(rows) - len(fluid) == 2 * 3
    met = [row for row in fluid if row["attainment"] >= row["objective"]]
    assert all(row["replicaSeconds"] >= row["oracleReplicaSeconds"] * 0.98 for row in met)
    text = (tmp_path / "one/report.md").read_text()
    assert (
        "\nheadrace bench autoscaling --trace azure_llm_2023_conv" in text and "## Checked by discrete events" in text
    )
    assert (tmp_path / "one/attainment.svg").exists()
    tables = [line for line in text.splitlines() if line.startswith("|") or line.endswith("|")]
    assert all(line.startswith("|") and line.endswith("|") for line in tables)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--trace", "no-such-trace"], "neither a file nor one of"),
        (["--trace", "azure_llm_2023_conv", "--cold-start", "soon"], "numbers of seconds"),
        (["--trace", "azure_llm_2023_conv", "--cold-start", "-1"], "above 0"),
        (["--trace", "azure_llm_2023_conv", "--fraction", "2"], "at most 1"),
        (["--trace", "vidur_arxiv_summarization_lengths_first5000"], "long enough"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "autoscaling", *arguments, "--output", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "autoscaling", "--output", "/dev/null"]) == 2
    assert capsys.readouterr().err == "headrace: --output /dev/null: File exists\n"


def test_traces_are_found_by_name_or_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    assert len(autoscaling.source(str(path)).prompt) == 1  # type: ignore[union-attr]
    assert len(autoscaling.source("azure_llm_2023_code").prompt) == 8819  # type: ignore[union-attr]
