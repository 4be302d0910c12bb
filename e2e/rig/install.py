"""Install the charts, make tenants' keys, apply the samples."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.kube import CommandFailed, Kube

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "charts"
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/warn": "restricted",
}


OURS = {"headrace.dev/made-by": "rig"}


@dataclass(frozen=True)
class Images:
    """Image references, as pods name them."""

    control_plane: str
    engine: str


@dataclass(frozen=True)
class Key:
    """A tenant's key: given to callers, never written to the cluster."""

    secret: str
    sha256: str


def headrace() -> str:
    """The command of this checkout."""
    return str(ROOT / ".venv/bin/headrace")


def new_key(name: str) -> Key:
    """A key made by `headrace key new`."""
    done = subprocess.run(
        [headrace(), "key", "new", "--name", name, "-o", "json"], capture_output=True, text=True, check=True
    )
    made = json.loads(done.stdout)
    return Key(made["key"], made["sha256"])


def is_ours(kube: Kube, namespace: str) -> bool:
    """Whether demo or tests made a namespace: only what they made is ever deleted."""
    selector = ",".join(f"{key}={value}" for key, value in OURS.items())
    listed = kube.run("get", "namespace", "-l", selector, "-o", "name").split()
    return f"namespace/{namespace}" in listed


def make_namespace(kube: Kube, name: str) -> None:
    """A namespace under the restricted Pod Security profile. Raises CommandFailed where somebody else has made it."""
    there = kube.run("get", "namespace", name, "--ignore-not-found", "-o", "name").strip()
    if there and not is_ours(kube, name):
        raise CommandFailed(
            f"the namespace {name} exists already and was not made by this program, which therefore leaves it alone: "
            "use another cluster, or unset KUBECONFIG for an embedded one"
        )
    labels = {**RESTRICTED, **OURS}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kube.run("apply", "-f", "-", stdin=json.dumps(manifest))


def install(kube: Kube, release: str, namespaces: list[str], images: Images, values: dict[str, Any]) -> None:
    """Both charts into the namespace `release`, watching `namespaces`; again: an upgrade."""
    for namespace in (release, *namespaces):
        make_namespace(kube, namespace)
    kube.run_helm("upgrade", "--install", "headrace-crds", str(CHARTS / "headrace-crds"), "-n", release, "--wait")
    merged = {
        "namespaces": namespaces,
        "images": {"controlPlane": images.control_plane, "engine": images.engine},
        **values,
    }
    given = ROOT / ".headrace"
    given.mkdir(exist_ok=True)
    file = given / f"values-{release}.json"
    file.write_text(json.dumps(merged))
    kube.run_helm(
        "upgrade", "--install", "headrace", str(CHARTS / "headrace"), "-n", release, "-f", str(file), "--wait",
        "--timeout", "180s",
    )  # fmt: skip


def set_keys(kube: Kube, namespace: str, tenant: str, keys: dict[str, Key]) -> None:
    """Let keys identify a tenant."""
    entries = [{"name": name, "sha256": key.sha256} for name, key in keys.items()]
    kube.patch("tenant.headrace.dev", tenant, namespace, {"spec": {"apiKeys": entries}})
