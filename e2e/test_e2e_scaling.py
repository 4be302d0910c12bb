"""The autoscaler on a real cluster: up on queue age, down when idle, to zero and back."""

from __future__ import annotations

import subprocess

import pytest

from rig.chat import chat, question
from rig.install import headrace
from rig.kube import wait_until
from rig.load import Load, Offer
from rig.samples import scaled
from rig.stage import Stage

pytestmark = pytest.mark.e2e


def decisions(stage: Stage, name: str) -> list[tuple[int, int]]:
    status = stage.kube.get("model.headrace.dev", name, stage.team)["status"]
    return [(d["from"], d["to"]) for d in status.get("scaling", {}).get("lastDecisions", [])]


def test_up_on_queue_age_then_down_then_zero_then_from_zero(stage: Stage) -> None:
    with stage.model("tide", scaling=scaled(0, 2, zero="45s")):
        load = Load(stage.endpoint, Offer("tide", callers=10, seconds=400, max_tokens=64)).start()
        try:
            wait_until("the second replica is ready", lambda: stage.ready_replicas("tide") == 2, within=240)
        finally:
            answers = load.stop()
        assert [a for a in answers if not a.explained] == []
        assert (1, 2) in decisions(stage, "tide")
        done = subprocess.run(
            [headrace(), "explain", "model", "tide", "-n", stage.team],
            env=stage.kube.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "1" in done.stdout and "2" in done.stdout and "queue" in done.stdout.lower()
        wait_until("nothing runs when nothing is asked", lambda: not stage.pods("tide"), within=240)
        assert (2, 1) in decisions(stage, "tide")
        assert stage.ready("tide")
        for _ in range(2):  # the second cold request counts as much as the first
            answer = chat(stage.endpoint, question("tide", "What is TTFT?", max_tokens=32), timeout=240)
            assert answer.ok, answer
            wait_until("it sleeps again", lambda: not stage.pods("tide"), within=240)
