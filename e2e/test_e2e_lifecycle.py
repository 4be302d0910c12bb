"""A Model's life on a real cluster: applied, Ready, asked, changed under load, deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rig import samples
from rig.chat import chat, question
from rig.kube import CommandFailed, condition, is_true, wait_until
from rig.load import Load, Offer
from rig.stage import Stage

pytestmark = pytest.mark.e2e
ORACLE = Path(__file__).parents[1] / "engine/headrace_engine/demo/oracle.json"


def oracle() -> list[dict[str, object]]:
    found = json.loads(ORACLE.read_text())
    return list(found["prompts"] if isinstance(found, dict) else found)


def test_applied_model_becomes_ready_and_answers_exactly(stage: Stage) -> None:
    with stage.model("alpha", scaling={"mode": "Off"}):
        for prompt in oracle()[:12]:
            body = question("alpha", "") | {"messages": prompt["messages"], "max_tokens": 128}
            answer = chat(stage.endpoint, body)
            assert answer.ok, answer
            assert answer.text == prompt["answer"]
            whole = chat(stage.endpoint, {k: v for k, v in body.items() if k != "stream_options"} | {"stream": False})
            assert whole.text == answer.text
        model = stage.kube.get("model.headrace.dev", "alpha", stage.team)
        assert is_true(model, "EngineConformant") and is_true(model, "MemoryFits")
        assert model["status"]["engine"]["maxTokens"] > 0


def test_spec_change_under_load_loses_no_request(stage: Stage) -> None:
    with stage.model("change", scaling={"mode": "Off"}):
        before = stage.kube.get("model.headrace.dev", "change", stage.team)["status"]["podRevision"]
        load = Load(stage.endpoint, Offer("change", callers=3, seconds=300, max_tokens=48)).start()
        try:
            stage.kube.patch("model.headrace.dev", "change", stage.team, {"spec": {"engine": {"maxSequences": 3}}})

            def rolled_out() -> bool:
                model = stage.kube.get("model.headrace.dev", "change", stage.team)
                deployment = stage.kube.get("deployment", "change", stage.team)
                done = deployment["status"].get("replicas") == deployment["status"].get("updatedReplicas") == 1
                return model["status"]["podRevision"] != before and is_true(model, "Ready") and done

            wait_until("the rollout", rolled_out, within=240)
            wait_until("the old pod is gone", lambda: len(stage.pods("change")) == 1, within=120)
        finally:
            answers = load.stop()
        assert answers
        assert [a for a in answers if not a.ok] == []


def test_delete_removes_everything(stage: Stage) -> None:
    with stage.model("gone", scaling={"mode": "Off"}):
        stage.kube.run("delete", "model", "gone", "-n", stage.team, "--wait=false")
        kinds = "deployment,service,poddisruptionbudget,networkpolicy,pod"

        def left() -> list[str]:
            return stage.kube.run("get", kinds, "-n", stage.team, "-l", "headrace.dev/model=gone", "-o", "name").split()

        wait_until("the Model is gone", lambda: not stage.kube.exists("model", "gone", stage.team), within=60)
        wait_until("its children are gone", lambda: not left(), within=180)
        refused = chat(stage.endpoint, question("gone", "hello"))
        assert (refused.status, (refused.error or {}).get("code")) == (404, "model_not_found")


def test_source_that_cannot_be_fetched_is_a_condition(stage: Stage) -> None:
    with stage.model("nowhere", wait=False, source={"uri": "hf://nobody/no-such-model"}, scaling={"mode": "Off"}):

        def told() -> bool:
            ready = condition(stage.kube.get("model.headrace.dev", "nowhere", stage.team), "Ready")
            return (ready.get("status"), ready.get("reason")) == ("False", "SourceUnreachable")

        wait_until("Ready=False says that the hub is not reached", told, within=120)


def test_impossible_spec_is_refused_with_the_field_and_the_reason(stage: Stage) -> None:
    bad = samples.model("wrong", scaling=samples.scaled(3, 2))
    with pytest.raises(CommandFailed, match=r"spec\.scaling\.minReplicas.*must not exceed"):
        stage.kube.apply(bad, namespace=stage.team)
    assert not stage.kube.exists("model.headrace.dev", "wrong", stage.team)
