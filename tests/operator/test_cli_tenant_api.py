"""`headrace explain tenant` against a real API server: the Tenant, and what stands beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cli.main import main

SHA = "fedcba9876543210" * 4


def placed(kind: str, name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def test_a_stored_tenant_is_explained_with_its_models(
    apiserver: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "quick", "ttft": "1s", "tpot": "100ms", "maxQueueAge": "250ms"}
    keys = [{"name": "ci", "sha256": SHA}]
    items = [
        placed("ServiceLevelObjective", "chat", namespace, {"classes": [row]}),
        placed("Model", "demo", namespace, {"source": {"uri": "builtin://demo"}, "serviceLevelRef": {"name": "chat"}}),
        placed("Model", "other", namespace, {"source": {"uri": "builtin://demo"}}),
        placed("Tenant", "search", namespace, {"apiKeys": keys, "models": [{"name": "demo"}], "classes": ["quick"]}),
    ]
    given = json.dumps({"kind": "List", "apiVersion": "v1", "items": items})
    applied = apiserver.kubectl("apply", "-f", "-", stdin=given)
    assert applied.returncode == 0, applied.stderr
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    assert main(["explain", "tenant", "search", "-n", namespace]) == 0
    text = capsys.readouterr().out
    assert f"Tenant search in namespace {namespace}: its state is not known yet" in text
    assert f"or namespace {namespace} is not among `namespaces` of any installation" in text and "1970" not in text
    assert f"ci  sha256 {SHA[:12]}…  works, never expires" in text and SHA not in text
    assert "demo  not known to be ready" in text or "demo  not ready (Pending)" in text, text
    assert "class quick" in text and "may not call: other" in text
    assert main(["explain", "tenant", "nobody", "-n", namespace]) == 2
    said = f"headrace: there is no Tenant nobody in namespace {namespace}, nor in another one\n"
    assert capsys.readouterr().err == said
