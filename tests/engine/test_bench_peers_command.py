"""`python -m benchmarks.engine.peers`: a report made again, and one of nothing."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.engine.peers import __main__ as command
from benchmarks.engine.peers.records import Steps


def report(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    """The command with --report; the exit status."""
    return run(monkeypatch, "--report", "--output", str(folder))


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["peers", *options])
    before = signal.getsignal(signal.SIGTERM)
    try:
        return command.main()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("there", [None, (), ("cells.jsonl",)], ids=["no-folder", "empty-folder", "empty-file"])
def test_a_report_of_nothing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, there: tuple[str, ...] | None
) -> None:
    folder = tmp_path / "out"
    if there is not None:
        folder.mkdir()
        for name in there:
            (folder / name).touch()
    assert report(monkeypatch, folder) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"there is nothing to report: {folder / 'cells.jsonl'} holds no results" in said
    assert not (folder / "report.md").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--peers", "vlm"), "--peers: vlm is unknown", id="peer"),
        pytest.param(("--parts", "gaps"), "--parts: gaps is unknown", id="part"),
        pytest.param(("--concurrency", "8,x"), "--concurrency", id="concurrency"),
        pytest.param(("--rounds", "2", "--starts", "3"), "--rounds", id="starts"),
    ],
)
def test_a_wrong_command_line_names_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_report_is_made_again_from_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = Steps(server="headrace", rows=[("decode 1", 17.0, 16.0, 33.0)])
    (tmp_path / "cells.jsonl").write_bytes(msgspec.json.encode(record) + b"\n")
    assert report(monkeypatch, tmp_path) == 0
    assert "decode 1" in (tmp_path / "report.md").read_text()


def test_steps_are_compared_round_by_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = {("headrace", 0): 12.0, ("vllm", 0): 10.0, ("vllm", 1): 30.0, ("headrace", 1): 33.0, ("headrace", 2): 9.0}
    with (tmp_path / "cells.jsonl").open("wb") as file:
        for (server, number), ms in times.items():
            file.write(msgspec.json.encode(Steps(server=server, round=number, rows=[("decode 1", ms, ms, ms)])) + b"\n")
    assert report(monkeypatch, tmp_path) == 0
    assert "1.15 (1.20, 1.10)" in (tmp_path / "report.md").read_text()
