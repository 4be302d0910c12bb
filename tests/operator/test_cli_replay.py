"""Recordings and `headrace replay`: identical inputs, identical decisions; a difference is an exit status."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.main import UsageError
from headrace.cli.replay import run
from headrace.scaling import Memory, Policy, Replicas, decide
from headrace.scaling.record import Recorder, RecordError, Ring, replay
from headrace.scaling.types import ClassPolicy, ClassSample, Fault, FaultKind, GatewaySample, Sample
from headrace.scaling.window import Window

KEY = ("team-a", "demo")
T0 = 1_700_000_000.0
POLICY = Policy(
    min_replicas=0,
    max_replicas=4,
    max_sequences=2,
    down_after_s=5.0,
    to_zero_after_s=8.0,
    classes=(ClassPolicy(name="default", max_queue_age_s=0.3, ttft_s=1.0, objective_percent=95),),
)


def sample(at: float, queued: int, in_flight: int, faulty: bool = False) -> Sample:
    return Sample(
        at=at,
        classes=(
            ClassSample(
                name="default", queued=queued, in_flight=in_flight, oldest_age_s=queued / 3 if queued else None
            ),
        ),
        gateways=(GatewaySample("gw", 0.1, T0 - 500.7, at - T0, {}),),
        faults=(Fault("engine p", "running", FaultKind.NAN),) if faulty else (),
    )


def recording(loads: list[tuple[int, int, bool]], cold_start: float | None = 1 / 3) -> list[str]:
    lines: list[str] = []
    recorder, window, memory, current = Recorder(lines.append), Window(POLICY), Memory(), 1
    recorder.window(KEY, POLICY, window)
    for n, (queued, in_flight, faulty) in enumerate(loads):
        at = T0 + 1.1 * n
        made = sample(at, queued, in_flight, faulty)
        window.add(made)
        recorder.sample(KEY, made)
        replicas = Replicas(current=current, ready=current, cold_start_s=cold_start)
        decision = decide(POLICY, window, replicas, at, memory)
        recorder.decision(KEY, POLICY, replicas, memory, decision)
        memory, current = decision.memory, decision.replicas
    return lines


BURST = [(0, 1, False)] * 4 + [(6, 2, False)] * 12 + [(0, 0, False)] * 30


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40),
    st.sampled_from([None, 0.1 + 0.2, math.nan, math.inf, -1.0]),
)
def test_every_recording_replays_to_itself(loads: list[tuple[int, int, bool]], cold_start: float | None) -> None:
    lines = recording(loads, cold_start)
    assert all(json.loads(line)["model"] == "team-a/demo" for line in lines)
    result = replay(lines)
    assert result.differences == () and result.decisions == len(loads)


def test_a_recording_may_begin_in_the_middle_with_the_window_as_it_stood() -> None:
    lines: list[str] = []
    recorder, window, memory = Recorder(lines.append), Window(POLICY), Memory()
    for n in range(40):
        made = sample(T0 + n, 0, 1)
        if n == 20:
            recorder.window(KEY, POLICY, window)
        window.add(made)
        if n >= 20:
            recorder.sample(KEY, made)
            replicas = Replicas(current=2, ready=2)
            decision = decide(POLICY, window, replicas, T0 + n, memory)
            recorder.decision(KEY, POLICY, replicas, memory, decision)
            assert decision.replicas == 1
    assert replay(lines).differences == ()
    without: list[str] = []
    Recorder(without.append).window(KEY, POLICY, Window(POLICY))
    assert replay([*without, *lines[1:]]).differences != ()  # without its past it is another story


def test_a_ring_keeps_the_newest_and_what_it_keeps_replays() -> None:
    ring, window, memory, current = Ring(decisions=10), Window(POLICY), Memory(), 2
    for n in range(47):
        at, wider = T0 + n, msgspec.structs.replace(POLICY, max_replicas=4 if n < 44 else 6)
        made = sample(at, n % 5, n % 4)
        ring.before(KEY, wider, window)
        window.add(made)
        ring.sample(KEY, made)
        replicas = Replicas(current=current, ready=current)
        decision = decide(wider, window, replicas, at, memory)
        ring.decision(KEY, wider, replicas, memory, decision)
        memory, current = decision.memory, decision.replicas
    result = replay(ring.lines())
    assert result.differences == () and result.decisions == 4 + 3  # since 40, and since the policy changed
    assert ring.lines(KEY) == ring.lines() and ring.lines(("other", "one")) == []
    ring.forget(KEY)
    assert ring.lines() == []


def command(capsys: pytest.CaptureFixture[str], name: str) -> tuple[int, str]:
    import argparse

    status = run(argparse.Namespace(file=name))
    return status, capsys.readouterr().out


def test_the_command_says_that_all_is_identical(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text("\n".join([*recording(BURST), ""]))
    status, out = command(capsys, str(path))
    assert status == 0
    assert out == "46 decisions, 4 of them changes: they are identical on replay.\n"


def test_a_tampered_decision_is_named_and_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = recording(BURST)
    changed = next(n for n, line in enumerate(lines) if '"queueAge"' in line and '"replicas":2,"reason"' in line)
    lines[changed] = lines[changed].replace('"replicas":2,"reason"', '"replicas":3,"reason"')
    path = tmp_path / "decisions.jsonl"
    path.write_text("\n".join(lines))
    status, out = command(capsys, str(path))
    assert status == 1
    assert f"line {changed + 1}, team-a/demo: replicas was 3, is now 2" in out and "differ" in out


def test_a_tampered_input_changes_decisions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line.replace('"queued":6', '"queued":1') for line in recording(BURST)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    status, out = command(capsys, "-")
    assert status == 1 and "more differences" in out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["not json"], "line 1 is not JSON", id="no JSON"),
        pytest.param(["[]"], "line 1 has no kind", id="no object"),
        pytest.param(["[" * 100_000], "line 1 is not JSON", id="nested"),
        pytest.param(recording(BURST)[1:], "does not begin with its window", id="torn off"),
        pytest.param(['{"kind":"window","model":"a/b"}'], "line 1: policy", id="incomplete"),
        pytest.param([*recording([])[:1], '{"kind":"party","model":"team-a/demo"}'], "unknown kind", id="kind"),
        pytest.param([*recording([])[:1], '{"kind":"sample","model":"team-a/demo"}'], "line 2: sample", id="no sample"),
    ],
)
def test_what_cannot_be_read_is_named_by_line(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=message):
        replay(lines)
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message):
        command_for(str(path))


def command_for(name: str) -> Any:
    import argparse

    return run(argparse.Namespace(file=name))


@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
def test_no_recording_is_one_sentence(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"cannot be read|holds no decision"):
        command_for(str(path))
