"""Who else sets replicas: a person under `Off`, who is obeyed, and a HorizontalPodAutoscaler, which is named."""

from __future__ import annotations

import pytest

from rig import samples
from rig.kube import Kube, condition, wait_until
from rig.load import Load, Offer
from rig.stage import MODEL, Stage

pytestmark = pytest.mark.e2e


def hpa(target: str, replicas: int) -> dict[str, object]:
    """One that wants exactly so many: it needs no metrics to say so."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rival"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": replicas,
            "maxReplicas": replicas,
        },
    }


def wanted(kube: Kube, name: str, team: str) -> int:
    return int(kube.get("deployment", name, team)["spec"]["replicas"])


def test_scaled_by_hand_under_off_stays_and_an_hpa_is_named(stage: Stage) -> None:
    with stage.model("shared", scaling={"mode": "Off"}):
        stage.kube.run("scale", MODEL, "shared", "-n", stage.team, "--replicas=2")
        wait_until("two are ready", lambda: stage.ready_replicas("shared") == 2, within=180)
        idle_and_loaded(stage, 2)
        off = condition(stage.kube.get(MODEL, "shared", stage.team), "ScalingActive")
        assert (off["status"], off["reason"]) == ("False", "Off")
        assert "spec.replicas 2 holds" in off["message"]
        assert stage.decisions("shared") == []

        stage.kube.patch(MODEL, "shared", stage.team, {"spec": {"scaling": samples.scaled(2, 3)}})
        wait_until("Headrace scales", lambda: active(stage) == ("True", "Active"), within=60)
        stage.kube.apply(hpa("shared", 1), namespace=stage.team)
        try:
            wait_until("the rival is noticed", lambda: active(stage) == ("False", "Conflict"), within=120)
            told = condition(stage.kube.get(MODEL, "shared", stage.team), "ScalingActive")["message"]
            assert "HorizontalPodAutoscaler 'rival'" in told
            assert "HorizontalPodAutoscaler 'rival'" in stage.explain("shared")

            def noted() -> bool:
                return any("HorizontalPodAutoscaler 'rival'" in note for why, note in stage.events("shared"))

            wait_until("an Event names it", noted, within=30)
            idle_and_loaded(stage, 1)
            assert stage.decisions("shared") == []
        finally:
            stage.kube.run("delete", "hpa", "rival", "-n", stage.team, "--ignore-not-found")


def active(stage: Stage) -> tuple[str, str]:
    found = condition(stage.kube.get(MODEL, "shared", stage.team), "ScalingActive")
    return str(found.get("status")), str(found.get("reason"))


def idle_and_loaded(stage: Stage, replicas: int) -> None:
    """Under load that would ask for more, and while it ends, the number is what was set."""
    load = Load(stage.endpoint, Offer("shared", callers=3 * replicas, seconds=60, max_tokens=48)).start()
    try:
        wait_until(
            "it was asked enough",
            lambda: wanted(stage.kube, "shared", stage.team) != replicas or len(load.answers) >= 4 * replicas,
            within=90,
        )
    finally:
        answers = load.stop()
    assert [a for a in answers if not a.explained] == []
    assert wanted(stage.kube, "shared", stage.team) == replicas
