"""What Debian's Prometheus is told to scrape."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rig.prometheus import config, targets_of


def pod(name: str, labels: dict[str, str], address: str | None, *ports: tuple[str, int]) -> dict[str, Any]:
    container = {"ports": [{"name": port, "containerPort": number} for port, number in ports]}
    status = {} if address is None else {"podIP": address}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container, {}]}, "status": status}


COMPONENT, ROLE = "app.kubernetes.io/component", "headrace.dev/role"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pod("o", {COMPONENT: "operator"}, "10.0.0.1", ("http", 8081)), "10.0.0.1:8081", id="operator"),
        pytest.param(
            pod("g", {COMPONENT: "gateway"}, "10.0.0.2", ("http", 8080), ("state", 9090)),
            "10.0.0.2:9090",
            id="gateway, not where it serves",
        ),
        pytest.param(
            pod("e", {COMPONENT: "engine", ROLE: "serve"}, "10.0.0.3", ("http", 8000)), "10.0.0.3:8000", id="engine"
        ),
        pytest.param(pod("e", {ROLE: "serve"}, None, ("http", 8000)), None, id="no address yet"),
        pytest.param(pod("x", {}, "10.0.0.4", ("http", 80)), None, id="somebody else's"),
    ],
)
def test_targets(found: dict[str, Any], expected: str | None) -> None:
    name = found["metadata"]["name"]
    assert targets_of([found]) == ([] if expected is None else [{"targets": [expected], "labels": {"pod": name}}])


def test_debians_prometheus_takes_the_configuration(tmp_path: Path) -> None:
    """It is built without some kinds of discovery."""
    targets, file = tmp_path / "targets.json", tmp_path / "prometheus.yaml"
    targets.write_text(json.dumps(targets_of([pod("o", {COMPONENT: "operator"}, "10.0.0.1", ("http", 8081))])))
    file.write_text(json.dumps(config(targets)))
    done = subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
