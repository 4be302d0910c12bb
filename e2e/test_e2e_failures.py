"""What fails on a real cluster, and what callers see of it."""

from __future__ import annotations

import pytest

from rig.chat import chat, question
from rig.kube import is_true, wait_until
from rig.load import Load, Offer
from rig.samples import scaled
from rig.stage import Stage

pytestmark = pytest.mark.e2e


def test_operator_killed_while_a_model_is_made_converges(stage: Stage) -> None:
    with stage.model("orphan", wait=False, scaling={"mode": "Off"}):
        stage.kill_pods(stage.release, "app.kubernetes.io/component=operator")
        stage.wait_ready("orphan")
        stage.kube.patch("model.headrace.dev", "orphan", stage.team, {"spec": {"replicas": 0}})
        stage.kill_pods(stage.release, "app.kubernetes.io/component=operator")
        wait_until("the change made meanwhile is carried out", lambda: not stage.pods("orphan"), within=180)


def test_engine_killed_under_load_answers_or_explains_every_request(stage: Stage) -> None:
    with stage.model("mortal", scaling={"mode": "Off"}, replicas=2):
        load = Load(stage.endpoint, Offer("mortal", callers=4, seconds=300, max_tokens=48)).start()
        try:
            wait_until("answers come", lambda: len(load.answers) > 4, within=60)
            victim = stage.pods("mortal")[0]["metadata"]["name"]
            stage.kube.run("delete", "pod", victim, "-n", stage.team, "--grace-period=0", "--force")
            seen = len(load.answers)
            wait_until("answers go on", lambda: len(load.answers) > seen + 8, within=120)
            wait_until("two are ready again", lambda: stage.ready_replicas("mortal") == 2, within=180)
        finally:
            answers = load.stop()
        assert [a for a in answers if not a.explained] == []
        assert sum(a.ok for a in answers) > len(answers) // 2


def test_gateway_restarted_at_zero_answers_the_next_request(stage: Stage) -> None:
    with stage.model("sleeper", wait=False, scaling=scaled(0, 1)):
        wait_until("the Model is Ready at zero", lambda: stage.ready("sleeper"), within=90)
        wait_until("no pods run", lambda: not stage.pods("sleeper"), within=180)
        stage.restart_gateway()
        answer = chat(stage.endpoint, question("sleeper", "What is TTFT?", max_tokens=32), timeout=240)
        assert answer.ok, answer
        assert is_true(stage.kube.get("model.headrace.dev", "sleeper", stage.team), "Accepted")
