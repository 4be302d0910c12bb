"""`headrace bench autoscaling` on a small trace of one's own: what is kept from earlier runs, and what is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.bench import builtin, profile
from headrace.cli.main import main

COLD = "5"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute at about one request/s, as Azure writes them."""
    random = np.random.default_rng(1)
    seconds = np.sort(random.uniform(0, 60, 60))
    lines = [
        f"2023-11-16 18:{int(s // 60):02d}:{s % 60:010.7f},{random.integers(100, 2000)},{random.integers(10, 200)}"
        for s in seconds
    ]
    path = tmp_path_factory.mktemp("trace") / "mine.csv"
    path.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *lines)) + "\n")
    return path


def run(trace: Path, output: Path, *more: str, cold: str = COLD) -> int:
    """The command on it."""
    arguments = ["--trace", str(trace), "--profile", "cpu-demo", "--cold-start", cold, "--output", str(output)]
    return main(["bench", "autoscaling", *arguments, *more])


def changed(**fields: float) -> bytes:
    """A profile with these fields."""
    return json.dumps(json.loads((profile.FOLDER / "cpu-demo.json").read_text()) | fields).encode()


def rows_of(folder: Path, model: str) -> list[dict[str, Any]]:
    """What results.json has of one model."""
    return [row for row in json.loads((folder / "results.json").read_text()) if row["model"] == model]


def test_what_discrete_events_said_stays_until_it_is_checked_again(trace: Path, tmp_path: Path) -> None:
    assert run(trace, tmp_path, "--check") == 0
    fluid, checked = rows_of(tmp_path, "fluid"), rows_of(tmp_path, "discrete")
    assert len(checked) == 2 * 3, "both service levels: the controller by two margins, and the best of hindsight"
    for row in checked:
        row["attainment"] = 0.12345  # no run can have made it
    (tmp_path / "results.json").write_text(json.dumps(fluid + checked))

    assert run(trace, tmp_path, "--resume") == 0
    assert rows_of(tmp_path, "discrete") == checked
    by_policy = [
        sorted((r["slo"], r["policy"], r["tuned"]) for r in rows) for rows in (fluid, rows_of(tmp_path, "fluid"))
    ]
    assert by_policy[0] == by_policy[1]
    report = (tmp_path / "report.md").read_text()
    assert "## Checked by discrete events" in report and report.count("| 0.1235 |") + report.count("| 0.1234 |") == 6

    assert run(trace, tmp_path, "--check", "--resume") == 0
    again = rows_of(tmp_path, "discrete")
    assert len(again) == 6 and all(row["attainment"] != 0.12345 for row in again)


def test_rows_of_other_cells_stay_of_both_models(trace: Path, tmp_path: Path) -> None:
    assert run(trace, tmp_path, "--check") == 0
    first = json.loads((tmp_path / "results.json").read_text())
    assert run(trace, tmp_path, "--check", "--resume", cold="8") == 0
    assert [row for row in json.loads((tmp_path / "results.json").read_text()) if row["coldStart"] == 5] == first
    assert len(rows_of(tmp_path, "discrete")) == 12


def test_cold_starts_for_which_a_trace_is_too_short_are_told(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, tmp_path, cold="5,120,300") == 0
    left_out = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert [line.partition(", this one lasts ")[0] for line in left_out] == [
        "mine: cold start 120 s left out: it needs a trace of 720 s (6 cold starts)",
        "mine: cold start 300 s left out: it needs a trace of 1800 s (6 cold starts)",
    ]
    assert {row["coldStart"] for row in rows_of(tmp_path, "fluid")} == {5.0}


def test_to_resume_nothing_is_told(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"--resume: {tmp_path} holds no results yet: everything is run\n"
    assert run(trace, tmp_path, "--resume") == 0
    assert capsys.readouterr().err.startswith(said)
    assert run(trace, tmp_path, "--resume") == 0
    assert said not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [(("--seed", "7"), "results of --seed 1, not 7"), (("--profile", "h100-8b"), "results of --profile cpu-demo, not")],
    ids=["seed", "profile"],
)
def test_what_differs_is_not_put_together(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str], said: str
) -> None:
    assert run(trace, tmp_path) == 0
    before = (tmp_path / "results.json").read_bytes()
    assert run(trace, tmp_path, *option, "--resume") == 2
    assert f"--resume: {tmp_path} holds {said}" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_bytes() == before


def test_what_is_done_outlives_what_fails_later(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second trace's mean request is larger than the profile's KV."""
    large = tmp_path / "large.csv"
    large.write_text(trace.read_text().replace(",", ",99"))
    large.write_text(large.read_text().replace("99ContextTokens,99Gen", "ContextTokens,Gen"))
    assert run(trace, tmp_path / "out", "--trace", str(large)) == 2
    assert "tokens exceed the profile's kvTokens, 65536" in capsys.readouterr().err
    assert {row["trace"] for row in rows_of(tmp_path / "out", "fluid")} == {"mine"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--jobs", "0"), "--jobs must be at least 1"),
        (("--trace", "a.csv,b.csv"), "a.csv,b.csv: no such file; each trace has a --trace of its own"),
        (("--trace", "other/mine.csv"), "two traces are called mine"),
        (("--trace", "vidur_arxiv_summarization"), "neither a file nor one of azure_llm_2023_code"),
    ],
    ids=["jobs", "a-list", "twice", "unknown"],
)
def test_options_that_make_no_sense_are_told(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.csv").write_text(trace.read_text())
    assert run(trace, tmp_path / "out", *options) == 2
    assert said in capsys.readouterr().err


def test_results_that_cannot_be_read_are_named(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("[{")
    assert run(trace, tmp_path, "--resume") == 2
    assert f"{tmp_path / 'results.json'} holds no results that can be kept" in capsys.readouterr().err


def test_help_names_what_there_is_and_needs_no_numpy() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from headrace.cli.main import main; "
        "main(['bench', 'autoscaling', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = {line.strip() for line in done.stdout.splitlines()}
    assert {*builtin.loads(), *profile.names()} <= lines, "one a line, to be copied"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such profile; write one of cpu-demo, h100-8b, or a .json file"),
        (b"{}", "Object missing required field `name`"),
        (changed(stepSeconds=-1), "Expected `float` > 0.0 - at `$.stepSeconds`"),
        (changed(kvTokens=0), "Expected `int` >= 1 - at `$.kvTokens`"),
        (changed(stepSecond=1), "Object contains unknown field `stepSecond`"),
    ],
    ids=["none", "broken", "negative", "no-tokens", "a-slip"],
)
def test_a_profile_that_is_none_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    path = tmp_path / "nope.json"
    if content is not None:
        path.write_bytes(content)
    name = "nope" if content is None else str(path)
    assert main(["bench", "autoscaling", "--profile", name, "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"headrace: --profile {name}: {said}\n"
    assert not (tmp_path / "out").exists()
