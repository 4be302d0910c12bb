"""`kubectl wait` on a real API server: it must not pass before the operator has judged the present spec."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.apionly import ApiServer

pytestmark = pytest.mark.apiserver

KINDS: dict[str, dict[str, Any]] = {
    "Model": {"source": {"uri": "builtin://demo"}},
    "Tenant": {},
    "ServiceLevelObjective": {"classes": [{"name": "c", "ttft": "1s", "tpot": "1s", "maxQueueAge": "1s"}]},
    "ParallelismProfile": {},
}


def apply(apiserver: ApiServer, namespace: str, document: dict[str, Any], *flags: str) -> None:
    whole = {"apiVersion": "headrace.dev/v1alpha1", **document}
    done = apiserver.kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=json.dumps(whole))
    assert done.returncode == 0, done.stderr


def create(apiserver: ApiServer, namespace: str, kind: str, **spec: Any) -> None:
    apply(apiserver, namespace, {"kind": kind, "metadata": {"name": "x"}, "spec": {**KINDS[kind], **spec}})


def report(apiserver: ApiServer, namespace: str, kind: str, generation: int) -> None:
    """Write Ready=True as the operator does: server-side apply of the status, never forced."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-29T12:00:00Z",
    }
    status = {"observedGeneration": generation, "conditions": [ready]}
    document = {"kind": kind, "metadata": {"name": "x"}, "status": status}
    flags = ("--server-side", "--subresource=status", "--field-manager=headrace.test")
    apply(apiserver, namespace, document, *flags)


def waits(apiserver: ApiServer, namespace: str, kind: str, condition: str = "Ready") -> bool:
    """Whether `kubectl wait` is still waiting after a second."""
    done = apiserver.kubectl("wait", f"--for=condition={condition}", "--timeout=1s", "-n", namespace, f"{kind}/x")
    if done.returncode:
        assert "timed out waiting for the condition" in done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("kind", KINDS)
def test_wait_does_not_pass_right_after_create(apiserver: ApiServer, namespace: str, kind: str) -> None:
    create(apiserver, namespace, kind)
    assert waits(apiserver, namespace, kind)
    report(apiserver, namespace, kind, generation=1)
    assert not waits(apiserver, namespace, kind)


def test_wait_does_not_pass_for_unknown(apiserver: ApiServer, namespace: str) -> None:
    create(apiserver, namespace, "Model")
    assert waits(apiserver, namespace, "Model", "Ready=Unknown")


def test_wait_does_not_pass_on_the_status_of_an_older_spec(apiserver: ApiServer, namespace: str) -> None:
    create(apiserver, namespace, "Model")
    report(apiserver, namespace, "Model", generation=1)
    create(apiserver, namespace, "Model", replicas=2)
    assert waits(apiserver, namespace, "Model")
    report(apiserver, namespace, "Model", generation=2)
    assert not waits(apiserver, namespace, "Model")


def test_a_new_object_says_that_nobody_has_looked(apiserver: ApiServer, namespace: str) -> None:
    create(apiserver, namespace, "Model")
    done = apiserver.kubectl("get", "model/x", "-n", namespace, "-o", "jsonpath={.status}")
    status = json.loads(done.stdout)
    assert status["observedGeneration"] == -1
    assert [(c["type"], c["status"], c["reason"]) for c in status["conditions"]] == [("Ready", "Unknown", "Pending")]


def test_columns_tell_the_story(apiserver: ApiServer, namespace: str) -> None:
    create(apiserver, namespace, "Model")
    ready, met = (
        {"type": kind, "status": status, "reason": why, "message": "", "lastTransitionTime": "2026-11-29T12:00:00Z"}
        for kind, status, why in (("Ready", "True", "PodsReady"), ("ServiceLevelMet", "False", "Missed"))
    )
    status = {
        "observedGeneration": 1,
        "readyReplicas": 1,
        "scaling": {
            "desired": 2,
            "lastDecisions": [{"at": "2026-11-29T12:00:00Z", "to": 2, "guards": [{"name": "g"}]}],
        },
        "serviceLevel": [{"name": "interactive", "goodputPercent": 91, "queueAge": "310ms"}],
        "conditions": [ready, met],
    }
    document = {"kind": "Model", "metadata": {"name": "x"}, "status": status}
    apply(apiserver, namespace, document, "--server-side", "--subresource=status", "--field-manager=headrace.test")
    lines = apiserver.kubectl("get", "mdl", "-n", namespace).stdout.splitlines()
    assert lines[0].split()[:5] == ["NAME", "READY", "REPLICAS", "DESIRED", "REASON"]
    assert lines[1].split()[:8] == ["x", "True", "1", "2", "PodsReady", "False", "91", "310ms"]


def test_decisions_keep_what_the_schema_does_not_name(apiserver: ApiServer, namespace: str) -> None:
    test_columns_tell_the_story(apiserver, namespace)
    done = apiserver.kubectl(
        "get", "model/x", "-n", namespace, "-o", "jsonpath={.status.scaling.lastDecisions[0].guards}"
    )
    assert json.loads(done.stdout) == [{"name": "g"}]


def test_everything_is_in_one_category(apiserver: ApiServer, namespace: str) -> None:
    for kind in KINDS:
        create(apiserver, namespace, kind)
    done = apiserver.kubectl("get", "headrace", "-n", namespace, "-o", "name")
    assert len(done.stdout.splitlines()) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_explain_knows_every_field(apiserver: ApiServer, kind: str) -> None:
    pending = [kind.lower()]
    for path in pending:
        done = apiserver.kubectl("explain", path)
        assert done.returncode == 0, done.stderr
        assert "<empty>" not in done.stdout, path
        lines = done.stdout.splitlines()
        fields = lines[lines.index("FIELDS:") :] if "FIELDS:" in lines else []
        deeper = [line.split("\t")[0].strip() for line in fields if "\t<Object>" in line or "\t<[]Object>" in line]
        pending += [f"{path}.{name}" for name in deeper if name != "metadata"]
    assert len(pending) > 3
