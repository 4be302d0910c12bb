"""`headrace explain`: a Model's object in words, from a file, stdin or the API."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.api.conditions import ConditionType
from headrace.cli.explain import absence, register
from headrace.cli.main import UsageError, main
from headrace.cluster.errors import api_error
from headrace.scaling import Policy
from headrace.scaling.outlook import outlook
from headrace.scaling.types import Candidate, ClassPolicy, Decision, Guard, Ordered, Reason


def policy(**more: Any) -> Policy:
    return Policy(
        **{
            "min_replicas": 0,
            "max_replicas": 3,
            "max_sequences": 2,
            "down_after_s": 20.0,
            "to_zero_after_s": 600.0,
            "classes": (ClassPolicy(name="chat", max_queue_age_s=0.25, ttft_s=1.0, objective_percent=95),),
            **more,
        }
    )


HELD = {
    "max_replicas": 0,
    "ordered": Ordered(by="override", detail="override to 0 until noon", min_replicas=0, max_replicas=3),
}
DECISION = Decision(
    at=1_700_000_000.0,
    current=1,
    replicas=2,
    reason=Reason.QUEUE_AGE,
    winner="queueAge",
    candidates=(
        Candidate("floor", 1, "minReplicas is 1"),
        Candidate("queueAge", 4, "waiting too long: chat 1.50 s of 0.25 s; 6 queued and 2 in flight need 4 × 2 slots"),
        Candidate("goodput", None, "chat unknown, nothing offered (objective 95 %)"),
    ),
    guards=(Guard("step", "4 → 2", "at most double in one step"),),
)
MODEL: dict[str, Any] = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "Model",
    "metadata": {"name": "demo", "namespace": "team-a", "generation": 4},
    "spec": {
        "source": {"uri": "builtin://demo"},
        "serviceLevelRef": {"name": "chat"},
        "engine": {"maxSequences": 2},
        "scaling": {"mode": "Auto", "minReplicas": 1, "maxReplicas": 2, "downAfter": "20s"},
    },
    "status": {
        "observedGeneration": 4,
        "replicas": 2,
        "readyReplicas": 1,
        "serviceLevel": [{"name": "chat", "goodputPercent": 88, "queueAge": "1.5s", "asOf": "2023-11-14T22:13:20Z"}],
        "memory": {
            "capacity": "512Mi",
            "weights": "4Mi",
            "kvPerToken": "2Ki",
            "overhead": "256Mi",
            "kvPool": "252Mi",
            "fullLengthSequences": 252,
        },
        "scaling": {
            "desired": 2,
            "coldStart": {"p50": "22s", "p95": "31s"},
            "lastDecisions": [DECISION.as_status()],
        },
        "conditions": [
            {
                "type": ConditionType.READY.value,
                "status": "True",
                "reason": "Serving",
                "message": "1 of 2 replicas is ready",
                "lastTransitionTime": "2023-11-14T22:00:00Z",
            },
            {"type": "MemoryFits", "status": "True", "reason": "Fits", "message": "252 requests fit"},
        ],
    },
}
SLO = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "ServiceLevelObjective",
    "metadata": {"name": "chat", "namespace": "team-a"},
    "spec": {
        "classes": [{"name": "chat", "ttft": "1s", "tpot": "100ms", "maxQueueAge": "250ms", "objectivePercent": 95}]
    },
}


def explain(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    import argparse

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["explain", "model", *argv])
    assert arguments.run(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture
def listed(tmp_path: Path) -> str:
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"kind": "List", "items": [MODEL, SLO]}))
    return str(path)


def test_it_tells_state_memory_service_level_decisions_and_what_would_change_them(
    capsys: pytest.CaptureFixture[str], listed: str
) -> None:
    text = explain(capsys, "demo", "-n", "team-a", "--file", listed)
    for expected in (
        "Model demo in namespace team-a: ready (Serving) since 2023-11-14T22:00:00Z",
        "252 requests fit",
        "2 wanted, 2 there, 1 ready",
        "mode Auto: the autoscaler acts, between 1 and 2",
        "22s (median) to 31s",
        "512Mi = 4Mi weights + 256Mi overhead + 252Mi for KV",
        "a token takes 2Ki of KV, so 252 requests",
        "chat: goodput 88 % (objective 95 %), queue age 1.5s (at most 250ms)",
        "2023-11-14T22:13:20Z: 1 → 2 replicas, QueueAge",
        "6 queued and 2 in flight need 4 × 2 slots",
        "guard step: 4 → 2, at most double in one step",
        "up: not beyond spec.scaling.maxReplicas, which is 2",
        "down: when at most 1 request at one time (80 % of 2 slots with 1) were there for 31s (a cold start)",
        "to zero: never, spec.scaling.minReplicas is 1",
    ):
        assert expected in text, text
    rows = {line.split()[0]: line for line in text.splitlines() if "→ queueAge" in line or " goodput " in line}
    assert "→ queueAge" in rows["→"] and " 4 " in rows["→"]
    assert " - " in next(line for line in text.splitlines() if line.strip().startswith("goodput"))


def test_another_writer_of_the_number_is_named_in_place_of_the_rules(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = {"type": "ScalingActive", "status": "False", "reason": "Conflict", "message": "hpa owns .spec.replicas"}
    status = {**MODEL["status"], "conditions": [told]}
    (tmp_path / "m.json").write_text(json.dumps({**MODEL, "status": status}))
    text = explain(capsys, "demo", "-n", "team-a", "--file", str(tmp_path / "m.json"))
    assert "mode Auto: the autoscaler does not act while another writer sets the number, between 1 and 2" in text
    assert "only the other writer, until it lets go: hpa owns .spec.replicas" in text
    assert "up: " not in text and "the autoscaler acts" not in text
    off = {**MODEL, "status": status, "spec": {**MODEL["spec"], "scaling": {"mode": "Off"}}}
    (tmp_path / "off.json").write_text(json.dumps(off))
    text = explain(capsys, "demo", "-n", "team-a", "--file", str(tmp_path / "off.json"))
    assert "which does not hold while another writer sets the number, 1 ready" in text
    assert "only the other writer, until it lets go" in text and "only spec.replicas" not in text


def test_schedules_under_the_mode_off_are_said_not_to_hold(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scaling = {"mode": "Off", "override": {"replicas": 2, "until": "2027-06-01T18:00:00Z"}}
    (tmp_path / "m.json").write_text(json.dumps({**MODEL, "spec": {**MODEL["spec"], "scaling": scaling}}))
    text = explain(capsys, "demo", "-n", "team-a", "--file", str(tmp_path / "m.json"))
    assert "schedules and an override hold under the modes Auto and Advise alone" in text


HOURS = {"start": "00:00", "end": "00:00", "maxReplicas": 0}
ZERO = {**MODEL["status"], "replicas": 0, "readyReplicas": 0, "scaling": {"desired": 0}}


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        pytest.param({"override": {"replicas": 0, "until": "9999-01-01T00:00:00Z"}}, "by override to 0", id="override"),
        pytest.param({"schedules": [{"name": "night", **HOURS}]}, "by schedule night", id="schedule"),
        pytest.param({"mode": "Off"}, "only spec.replicas, or `kubectl scale`: scaling.mode is Off", id="off"),
    ],
)
def test_of_a_model_held_at_zero_no_request_is_said_to_wake_it(
    scaling: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec = {**MODEL["spec"], "replicas": 0, "scaling": {"mode": "Auto", "minReplicas": 0, **scaling}}
    (tmp_path / "m.json").write_text(json.dumps({**MODEL, "spec": spec, "status": ZERO}))
    _, would_change = explain(capsys, "demo", "--file", str(tmp_path / "m.json")).split("What would change")
    assert says in would_change
    assert ("no request brings a replica back meanwhile" in would_change) == (scaling.get("mode") != "Off")
    for untrue in ("the first request", "when a request waits"):
        assert untrue not in would_change, would_change


def test_under_advise_the_number_is_said_to_be_the_specs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = {**MODEL["spec"], "scaling": {**MODEL["spec"]["scaling"], "mode": "Advise"}}
    (tmp_path / "m.json").write_text(json.dumps({**MODEL, "spec": spec}))
    _, would_change = explain(capsys, "demo", "--file", str(tmp_path / "m.json")).split("What would change")
    assert "only spec.replicas, or `kubectl scale`: scaling.mode is Advise. What the autoscaler would" in would_change
    assert "up: not beyond" in would_change


@pytest.mark.parametrize("mode", ["Auto", "Advise", "Off"])
def test_of_a_stalled_model_nothing_is_said_to_scale_it(
    mode: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    zone = {"name": "night", "start": "20:00", "end": "06:00", "timeZone": "Mars/Base", "maxReplicas": 1}
    stalled = {"type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "no time zone"}
    spec = {**MODEL["spec"], "scaling": {**MODEL["spec"]["scaling"], "mode": mode, "schedules": [zone]}}
    status = {**MODEL["status"], "conditions": [stalled]}
    (tmp_path / "m.json").write_text(json.dumps({**MODEL, "spec": spec, "status": status}))
    text = explain(capsys, "demo", "--file", str(tmp_path / "m.json"))
    assert "while the Model is stalled" in text.split("Replicas\n")[1].split("Memory")[0]
    assert "nothing, before the condition Stalled is gone: no time zone" in text
    for untrue in ("the autoscaler acts", "the autoscaler only records", "up: ", "to zero: ", "only spec.replicas"):
        assert untrue not in text, text


def test_it_reads_standard_input_and_a_single_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(MODEL)))
    text = explain(capsys, "demo", "--file", "-")
    assert "Service level (chat, which was not found: built in)" in text


def test_a_model_that_nobody_has_looked_at_is_explained_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(
        "kind: Model\nmetadata: {name: new, generation: 1}\nspec: {source: {uri: 'builtin://demo'}, replicas: 2}\n"
    )
    text = explain(capsys, "new", "--file", str(path))
    for expected in (
        "its state is not known yet",
        "no operator has seen it yet. Either the operator does not run",
        "2 wanted by spec.replicas",
        "not computed yet",
        "none yet",
        "nothing, before an operator has seen it",
        "Service level (built in)",
    ):
        assert expected in text, text


@pytest.mark.parametrize("mode", ["Auto", "Advise"])
def test_of_a_model_in_a_namespace_that_nobody_serves_only_that_is_told(
    mode: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pending = {"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for the operator."}
    given = {
        **MODEL,
        "metadata": {"name": "demo", "namespace": "team-z", "generation": 1},
        "spec": {**MODEL["spec"], "scaling": {"mode": mode, "minReplicas": 1, "maxReplicas": 2}},
        "status": {"conditions": [{**pending, "lastTransitionTime": "1970-01-01T00:00:00Z"}]},
    }
    (tmp_path / "m.json").write_text(json.dumps(given))
    text = explain(capsys, "demo", "-n", "team-z", "--file", str(tmp_path / "m.json"))
    for never in ("1970", "autoscaler", "0 wanted", "Waiting for the operator", "Pending", "when"):
        assert never not in text, text
    for expected in (
        "Model demo in namespace team-z: its state is not known yet",
        "or namespace team-z is not among `namespaces` of any installation",
        "--reuse-values --set 'namespaces={PRESENT,team-z}'`",
        f"spec.scaling asks for mode {mode}, between 1 and 2",
    ):
        assert expected in text, text


def test_decisions_of_another_version_are_told_as_far_as_they_go(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    odd = json.loads(json.dumps(MODEL))
    odd["status"]["scaling"]["lastDecisions"] = [{"from": 1, "to": 0}, {"candidates": ["x", {}], "guards": "none"}]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(odd))
    text = explain(capsys, "demo", "--file", str(path))
    assert "at an unknown time: 1 → 0 replicas, ?" in text


@pytest.mark.parametrize(
    ("content", "argv", "message"),
    [
        pytest.param("{", ["demo"], "neither JSON nor YAML", id="broken"),
        pytest.param("[]", ["demo"], "holds no Model named demo", id="empty"),
        pytest.param(json.dumps(MODEL), ["other"], "holds no Model named other", id="another name"),
        pytest.param(json.dumps(MODEL), ["demo", "-n", "b"], "holds no Model named demo", id="another namespace"),
        pytest.param(json.dumps({**MODEL, "spec": {}}), ["demo"], "spec.source", id="not a Model"),
    ],
)
def test_bad_files_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, argv: list[str], message: str
) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        explain(capsys, *argv, "--file", str(path))


@pytest.mark.parametrize("kind", ["model", "tenant"])
def test_an_empty_name_is_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["explain", kind, ""])
    assert caught.value.code == 2
    assert "argument NAME: is empty" in capsys.readouterr().err


def test_a_missing_file_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        explain(capsys, "demo", "--file", str(tmp_path / "nothing"))


def test_without_a_cluster_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r".+"):
        explain(capsys, "demo")


@pytest.mark.parametrize(
    ("changed", "current", "name", "expected"),
    [
        pytest.param({}, 0, "up", "at once when a request waits", id="up from zero"),
        pytest.param({}, 1, "up", "class chat waits longer than 250ms", id="up"),
        pytest.param({}, 3, "up", "maxReplicas, which is 3", id="up at the most"),
        pytest.param({}, 3, "down", "at most 3 requests at one time (80 % of 4 slots with 2)", id="down"),
        pytest.param({}, 1, "down", "not below 1: see to zero", id="down from one"),
        pytest.param({"min_replicas": 2}, 2, "down", "minReplicas is 2", id="down at the least"),
        pytest.param({}, 0, "down", "nothing runs", id="down from zero"),
        pytest.param({}, 1, "zero", "no request for 10m", id="to zero"),
        pytest.param({"min_replicas": 1}, 1, "zero", "never", id="never to zero"),
        pytest.param({}, 0, "zero", "the first request brings a replica back", id="at zero"),
        pytest.param({"min_replicas": 2}, 0, "up", "at once, spec.scaling.minReplicas is 2", id="up to the least"),
        pytest.param(HELD, 0, "up", "not beyond maxReplicas of override to 0", id="held: up"),
        pytest.param(HELD, 0, "down", "nothing runs", id="held: down"),
        pytest.param(HELD, 0, "zero", "held at zero by override to 0 until noon; no request", id="held at zero"),
        pytest.param(HELD, 2, "down", "at once to 0, maxReplicas of override to 0 until noon", id="down at once"),
        pytest.param(HELD, 2, "zero", "at once, maxReplicas of override to 0 until noon is 0", id="to zero at once"),
    ],
)
def test_outlook(changed: dict[str, Any], current: int, name: str, expected: str) -> None:
    assert expected in outlook(policy(**changed), current, 10.0)[name]


@pytest.mark.parametrize("kind", ["Model", "Tenant"])
def test_namespaces_that_may_not_be_listed_leave_a_reminder(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(kind: str, name: str) -> list[str]:
        raise api_error(403, {"message": "cannot list resource at the cluster scope"})

    monkeypatch.setattr("headrace.cli.explain._namespaces_with", forbidden)
    assert absence(kind, "demo", "default") == (
        f"there is no {kind} demo in namespace default; -n NAMESPACE names another one"
    )
