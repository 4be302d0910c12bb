"""Recorded steps: what a line holds, what it never holds, and that a full disk ends the recording alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace_engine.config import EngineConfig
from headrace_engine.core import process
from headrace_engine.core.failure import StartError
from headrace_engine.core.plan import StepPlan, StepResult
from headrace_engine.core.recorded import Line, Recorded, recorded
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import FakeRunner, fake_kv


class Clock:
    """Each look is a hundredth of a second after the one before."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


class Full:
    """A disk without room."""

    def write(self, data: bytes, /) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        return None


class Slow(FakeRunner):
    """Says that a step took 20 ms."""

    def collect(self) -> StepResult:
        return msgspec.structs.replace(super().collect(), ms=20.0)


def _lines(path: Path) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]


def _driven(runner: Recorded, **more: int) -> Driven:
    return Driven(runner=runner, **more)


@pytest.mark.parametrize("lag", [0, 1])
def test_each_step_is_a_line(tmp_path: Path, lag: int) -> None:
    path = tmp_path / "steps.jsonl"
    runner = recorded(Slow(lag, fake_kv(64)), str(path), Clock())
    driven = _driven(runner, budget=128)
    driven.submit("a", prompt(200), 3)
    driven.step(2)
    driven.submit("b", prompt(50, 2), 2)
    while driven.scheduler.busy:
        driven.step()
    lines, plans = _lines(path), driven.plans
    assert len(lines) == len(plans)
    assert all(line.seconds == 0.02 for line in lines)
    assert [line.prefill for line in lines[:3]] == [[(128, 0)], [(72, 128)], [(50, 0)]]
    assert lines[2].sequences == 1 and lines[2].kv_tokens == 201  # a's first own token, beside b's prompt
    assert sum(line.sequences + sum(n for n, _ in line.prefill) for line in lines) == 200 + 2 + 50 + 1


def test_the_time_between_is_known_where_a_row_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    driven = _driven(recorded(Slow(0, fake_kv(64)), str(path), Clock()))
    for name in ("a", "b"):  # one after the other: the engine idles before the second
        driven.submit(name, prompt(10), 3)
        while driven.scheduler.busy:
            driven.step()
    assert [line.between for line in _lines(path)] == [None, 0.01, 0.01, None, 0.01, 0.01]


def test_lines_hold_sizes_and_times_alone(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    driven = _driven(recorded(Slow(0, fake_kv(64)), str(path), Clock()))
    driven.submit("a-name-that-nobody-may-see", prompt(70), 2)
    while driven.scheduler.busy:
        driven.step()
    for line in path.read_bytes().splitlines():
        raw = msgspec.json.decode(line)
        assert set(raw) <= {"seconds", "between", "sequences", "kvTokens", "prefill"}
        assert raw.get("prefill", [[70, 0]]) == [[70, 0]]


def test_a_full_disk_ends_the_recording_alone(caplog: pytest.LogCaptureFixture) -> None:
    driven = _driven(Recorded(FakeRunner(0, fake_kv(64)), Full(), Clock()))
    driven.submit("a", prompt(10), 5)
    while driven.scheduler.busy:
        driven.step()
    assert sum(len(delta.tokens) for delta in driven.deltas["a"]) == 5
    assert [record.message for record in caplog.records] == ["steps are not recorded any more"]


def test_a_lost_step_is_not_written(tmp_path: Path) -> None:
    class Broken(FakeRunner):
        def launch(self, plan: StepPlan) -> None:
            if plan.number == 2:
                raise RuntimeError("injected")
            super().launch(plan)

    path = tmp_path / "steps.jsonl"
    runner = recorded(Broken(0, fake_kv(64)), str(path), Clock())
    plans = [StepPlan(number=n, new=[], steps=[], drop=[]) for n in (1, 2, 3)]
    runner.launch(plans[0])
    runner.collect()
    with pytest.raises(RuntimeError, match="injected"):
        runner.launch(plans[1])
    runner.launch(plans[2])
    assert runner.collect().number == 3
    assert len(_lines(path)) == 2


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = EngineConfig(path="", served_name="m", record_steps=str(tmp_path / "no" / "steps.jsonl"))
    with pytest.raises(StartError, match=r"--record-steps .*steps.jsonl: No such file"):
        process._recorded(FakeRunner(0, fake_kv(4)), config.record_steps)
    assert process._recorded(runner := FakeRunner(0, fake_kv(4)), "") is runner
