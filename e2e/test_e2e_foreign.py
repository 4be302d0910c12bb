"""`make demo` on a cluster that is the user's own: the embedded one, seen through a kubeconfig that is nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import binaries
from rig.foreign import IMAGE_VARIABLES
from rig.install import DEFINITIONS, ROOT
from rig.stage import Stage

pytestmark = pytest.mark.e2e
BYSTANDER = "bystander"
NAME = ("--name", "theirs")  # of the key's file: a demo of this checkout may be up


@pytest.fixture
def theirs(stage: Stage, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user whose cluster has namespaces, definitions and another Headrace already."""
    if stage.world.netns is None:
        pytest.skip("the whole run plays on a user's cluster already, which may have a demo on it")
    tools, config = tmp_path / "bin", tmp_path / "config"
    tools.mkdir()
    (tools / "kubectl").symlink_to(binaries.kube())
    (tools / "helm").symlink_to(binaries.helm())
    config.write_text(stage.kube.kubeconfig.read_text())
    stage.kube.run("create", "namespace", BYSTANDER)
    names = zip(IMAGE_VARIABLES, (stage.world.images.control_plane, stage.world.images.engine), strict=True)
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "e2e")}
    yield {**os.environ, **path, **dict(names), "KUBECONFIG": str(config)}
    stage.kube.run("delete", "namespace", BYSTANDER)


def demo(verb: str, *flags: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "demo", verb, *flags],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def present(stage: Stage) -> set[str]:
    return set(stage.kube.run("get", "namespace,crd", "-o", "name").split())


def test_demo_on_a_users_cluster_removes_only_what_it_made(stage: Stage, theirs: dict[str, str]) -> None:
    before = present(stage)
    told = demo("up", "--no-burst", *NAME, environment=theirs)
    assert "TTFT" in told
    assert "are there and are used as they are" in told
    assert {"namespace/headrace", "namespace/team-a"} <= present(stage) - before
    told = demo("down", *NAME, environment=theirs)
    assert "namespace team-a and all in it" in told
    assert present(stage) == before
    assert {f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in DEFINITIONS} <= before
    assert stage.kube.exists("deployment", "headrace-operator", stage.release)
