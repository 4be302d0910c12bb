"""What the demo tells while it waits for replicas: what changes, and what is waited for where nothing does."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import msgspec
import pytest

from demo.burst import TOLD_EVERY, Watch, why_not_fewer
from demo.story import Story
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
    assert waited[0] == "   after 16 s: the peak is held"  # polled every 2 s
    assert len(waited) == 70 // (TOLD_EVERY + 1)
    assert out.getvalue().splitlines()[-1].startswith("   replicas 1 ready / 1 desired")


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
