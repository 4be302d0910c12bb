"""What the demo tells while it waits for replicas: what changes, and what is waited for where nothing does."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
import subprocess
from typing import Any

import msgspec
import pytest

from demo.burst import OVER, TOLD_EVERY, Watch, why_not_fewer
from demo.story import Story
from demo.talk import DemoFailed
from headrace.scaling.rehearsal import LEAST_S
from headrace.scaling.types import Candidate, Decision, Guard, Reason
from rig.kube import WaitFailed

HELD = "forecast: 6.1 requests/s (mean of 10 s × 1.1, held for 60 s); 0.2 requests/s at present, 1 replica would take 5"


@dataclasses.dataclass
class Clock:
    now: float = 1000.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def status(replicas: int) -> dict[str, Any]:
    return {"replicas": replicas, "readyReplicas": replicas, "scaling": {"desired": replicas}}


def recorded(*made: Decision) -> str:
    lines = [{"kind": "window", "model": "team-a/demo"}]
    lines += [{"kind": "decision", "model": "team-a/demo", "decision": msgspec.to_builtins(one)} for one in made]
    return "".join(f"{msgspec.json.encode(line).decode()}\n" for line in lines)


def decision(down: Candidate, *guards: Guard) -> Decision:
    return Decision(
        at=1e9,
        current=2,
        replicas=2,
        reason=Reason.STEADY,
        winner="current",
        candidates=(Candidate("current", 2, "2 of 2 ready"), down),
        guards=guards,
    )


def test_what_is_waited_for_is_told_every_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    watch = Watch(Story(1), lambda: status(2 if clock.now < 1070 else 1), clock.read, clock.sleep)
    watch.until(1, 240, lambda: "the peak is held")
    waited = [line for line in out.getvalue().splitlines() if "the peak is held" in line]
    assert waited == ["   after 14 s: the peak is held"]  # polled every 2 s
    assert re.findall(r"after (\d+) s: still so", out.getvalue()) == ["28", "42", "56"]
    assert out.getvalue().splitlines()[-1].startswith("   replicas 1 ready / 1 desired")


def test_reason_is_told_whole_again_where_its_words_change(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    reasons = iter(["24.4 requests/s, held for 600 s", "3 requests/s, held for 60 s", "one is enough", "one is enough"])
    watch = Watch(Story(1), lambda: status(2 if clock.now < 1058 else 1), clock.read, clock.sleep)
    watch.until(1, 240, lambda: next(reasons))
    assert re.findall(r"after (\d+) s: (.*)", out.getvalue()) == [
        ("14", "24.4 requests/s, held for 600 s"),
        ("28", "still so"),
        ("42", "one is enough"),
        ("56", "still so"),
    ]


@dataclasses.dataclass
class Load:
    """A load generator that ends at a time."""

    clock: Clock
    ends: float

    def finish(self, seconds: float) -> str:
        began = self.clock.now
        self.clock.now = min(began + seconds, max(began, self.ends))
        if self.clock.now < self.ends:
            raise subprocess.TimeoutExpired("load", seconds)
        return "told"


def test_no_silence_while_the_load_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out, told = Clock(), io.StringIO(), [1000.0]
    monkeypatch.setattr("sys.stdout", out)

    def seen() -> dict[str, Any]:
        told.append(clock.now)
        return status(2)

    load = Load(clock, 1065.0)
    assert Watch(Story(1), seen, clock.read, clock.sleep).beside(load.finish, 275) == "told"
    lines = out.getvalue().splitlines()
    assert len(lines) == len(told) - 1
    assert all("still under load: replicas 2 ready / 2 desired" in line for line in lines)
    assert max(later - earlier for earlier, later in itertools.pairwise([*told, load.ends])) <= TOLD_EVERY


def test_no_silence_while_a_replica_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    Watch(Story(1), lambda: status(1 if clock.now < 1040 else 2), clock.read, clock.sleep).until(2, 150)
    assert re.findall(r"after (\d+) s: still so", out.getvalue()) == ["14", "28"]


def test_load_without_an_end_is_a_failure_in_words() -> None:
    clock = Clock()
    watch = Watch(Story(1), lambda: status(2), clock.read, clock.sleep)
    with pytest.raises(DemoFailed, match="did not end within 275 s"):
        watch.beside(Load(clock, 9000.0).finish, 275)
    assert clock.now <= 1275 + TOLD_EVERY


def test_history_that_a_choice_needs_is_as_told() -> None:
    assert f"once there are {LEAST_S:.0f} s of" in OVER


def test_replicas_that_do_not_come_are_a_failure_in_words() -> None:
    clock = Clock()
    with pytest.raises(WaitFailed, match=r"did not come to 2 ready replicas within 10 s; last: replicas 1 ready"):
        Watch(Story(1), lambda: status(1), clock.read, clock.sleep).until(2, 10)
    assert clock.now == 1010


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        pytest.param("", "not fewer yet", id="may-not-ask"),
        pytest.param(recorded(), "not fewer yet", id="nothing-decided"),
        pytest.param(
            recorded(decision(Candidate("down", 1, "old")), decision(Candidate("down", None, HELD))),
            f"one replica is not judged enough yet: {HELD}",
            id="newest-counts",
        ),
        pytest.param(
            recorded(decision(Candidate("down", 1, HELD), Guard("pace", "holds 2", "the last step is 5 of 20 s old"))),
            f"one replica is enough: {HELD}; pace holds 2, the last step is 5 of 20 s old",
            id="guarded",
        ),
    ],
)
def test_the_newest_decision_says_what_is_waited_for(recording: str, words: str) -> None:
    assert why_not_fewer(recording) == words
