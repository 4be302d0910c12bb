"""`headrace explain` against a real API server: the stored status is told whole."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cli.explain import register
from headrace.cli.main import UsageError
from headrace.scaling.types import Candidate, Decision, Guard, Reason

NAMESPACE = "explained"
DECISION = Decision(
    at=1_700_000_000.0,
    current=2,
    replicas=1,
    reason=Reason.UNDERUSED,
    winner="down",
    candidates=(Candidate("current", 2, "2 of 2 ready"), Candidate("down", 1, "at most 1 requests at one time")),
    guards=(Guard("pace", "0 → 1", "one at a time"),),
)


@pytest.fixture
def server(apiserver: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """With a Model that has a status, and its objective."""
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "ServiceLevelObjective",
            "metadata": {"name": "chat", "namespace": NAMESPACE},
            "spec": {"classes": [{"name": "quick", "ttft": "1s", "tpot": "100ms", "maxQueueAge": "250ms"}]},
        },
        {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": "demo", "namespace": NAMESPACE},
            "spec": {
                "source": {"uri": "builtin://demo"},
                "serviceLevelRef": {"name": "chat"},
                "scaling": {"mode": "Auto", "maxReplicas": 2},
            },
        },
        {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": "search", "namespace": NAMESPACE},
            "spec": {"models": [{"name": "demo"}]},
        },
    ]
    applied = apiserver.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
    )
    assert applied.returncode == 0, applied.stderr
    patch = {"status": {"scaling": {"desired": 1, "lastDecisions": [DECISION.as_status()]}, "replicas": 1}}
    patched = apiserver.kubectl(
        "patch", "model.headrace.dev", "demo", "-n", NAMESPACE,
        "--subresource=status", "--type=merge", "-p", json.dumps(patch),
    )  # fmt: skip
    assert patched.returncode == 0, patched.stderr
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    return apiserver


def explain(*argv: str, kind: str = "model") -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["explain", kind, *argv])
    status: int = arguments.run(arguments)
    return status


def test_the_stored_decision_and_the_objective_are_told(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("demo", "-n", NAMESPACE) == 0
    text = capsys.readouterr().out
    for expected in (
        "Service level (chat)",
        "quick: goodput unknown",
        "2023-11-14T22:13:20Z: 2 → 1 replicas, Underused",
        "→ down",
        "at most 1 requests at one time",
        "guard pace: 0 → 1, one at a time",
        "not known to be ready (Pending)",
        "a request of class quick waits longer than 250ms",
    ):
        assert expected in text, text


def test_a_model_that_does_not_exist_is_one_sentence(server: ApiServer) -> None:
    with pytest.raises(UsageError, match=r"^there is no Model nowhere in namespace explained, nor in another one$"):
        explain("nowhere", "-n", NAMESPACE)


@pytest.mark.parametrize(("kind", "name"), [("model", "demo"), ("tenant", "search")])
def test_an_object_of_another_namespace_is_pointed_at(server: ApiServer, kind: str, name: str) -> None:
    """Other tests' namespaces on the same API server may have one as well."""
    words = rf"^there is no {kind.title()} {name} in namespace default, but in [^:]*\b{NAMESPACE}\b[^:]*: say -n \S+$"
    with pytest.raises(UsageError, match=words):
        explain(name, kind=kind)
