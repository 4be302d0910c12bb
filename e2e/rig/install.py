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
SELECTOR = ",".join(f"{key}={value}" for key, value in OURS.items())
DEFINITIONS = tuple(
    f"{kind}.headrace.dev" for kind in ("models", "servicelevelobjectives", "tenants", "parallelismprofiles")
)
OWNER = ("meta.helm.sh/release-namespace", "meta.helm.sh/release-name")


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
    listed = kube.run("get", "namespace", "-l", SELECTOR, "-o", "name").split()
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


def definition_owners(kube: Kube) -> dict[str, str]:
    """The definitions that the cluster has: name -> NAMESPACE/RELEASE that helm installed it with, or ""."""
    listed = json.loads(kube.run("get", "crd", *DEFINITIONS, "--ignore-not-found", "-o", "json") or "{}")
    found = listed.get("items", [listed] if listed else [])
    notes = {item["metadata"]["name"]: item["metadata"].get("annotations", {}) for item in found}
    return {name: "/".join(filter(None, map(noted.get, OWNER))) for name, noted in notes.items()}


def install_definitions(kube: Kube, release: str) -> None:
    """The definitions' chart; those that somebody else installed are used as they are.

    What was not there before is marked as ours. Raises CommandFailed where somebody else has installed a part of them.
    """
    before = definition_owners(kube)
    others = {owner or "somebody" for owner in before.values() if owner != f"{release}/headrace-crds"}
    if others:
        if missing := [name for name in DEFINITIONS if name not in before]:
            raise CommandFailed(
                f"the cluster has definitions of Headrace's kinds, installed by {', '.join(sorted(others))}, but lacks "
                f"{', '.join(missing)}: install the chart headrace-crds anew as its owner"
            )
        print(f"   the CustomResourceDefinitions of {', '.join(sorted(others))} are there and are used as they are")
        return
    kube.run_helm("upgrade", "--install", "headrace-crds", str(CHARTS / "headrace-crds"), "-n", release, "--wait")
    if fresh := [name for name in DEFINITIONS if name not in before]:
        kube.run("label", "crd", *fresh, SELECTOR, "--overwrite")


def drop_definitions(kube: Kube) -> str:
    """Delete the definitions that we brought, unless anything needs them; what was done, as a sentence."""
    ours = kube.run("get", "crd", "-l", SELECTOR, "-o", "name").split()
    if not ours:
        return "no CustomResourceDefinition is removed: none was brought by this program"
    if kube.run("get", "deployment", "-A", "-l", "app.kubernetes.io/name=headrace", "-o", "name").strip():
        return "the CustomResourceDefinitions stay: another installation of Headrace runs"
    kinds = ",".join(name.partition("/")[2] for name in ours)
    if kube.run("get", kinds, "-A", "-o", "name").strip():
        return "the CustomResourceDefinitions stay: there are objects of their kinds"
    kube.run("delete", *ours, "--wait=true")
    return "the CustomResourceDefinitions that it had brought"


def install(kube: Kube, release: str, namespaces: list[str], images: Images, values: dict[str, Any]) -> None:
    """Both charts into the namespace `release`, watching `namespaces`; again: an upgrade."""
    for namespace in (release, *namespaces):
        make_namespace(kube, namespace)
    forget_unfinished(kube, release)
    install_definitions(kube, release)
    merged = {
        "namespaces": namespaces,
        "images": {"controlPlane": images.control_plane, "engine": images.engine},
        **values,
    }
    command = ("upgrade", "--install", "headrace", str(CHARTS / "headrace"), "-n", release, "-f", "-")
    try:
        kube.run_helm(*command, "--wait", "--timeout", "180s", stdin=json.dumps(merged))
    except CommandFailed as error:
        raise CommandFailed(f"{error}\n{last_words(kube, release)}") from error


def forget_unfinished(kube: Kube, release: str) -> None:
    """Helm refuses to touch a release whose last helm was killed: drop its note of that one, and nothing else."""
    states = "pending-install,pending-upgrade,pending-rollback"
    selector = f"owner=helm,name in (headrace,headrace-crds),status in ({states})"
    told = kube.run("delete", "secret", "-n", release, "-l", selector, "-o", "name").split()
    if dropped := [name for name in told if name.startswith("secret/")]:
        print(f"   a helm that was killed in the middle left {', '.join(dropped)}: dropped, and installed anew")


def last_words(kube: Kube, namespace: str) -> str:
    """What pods that are not ready say of themselves: their containers' states and the end of their logs."""
    told = []
    for pod in kube.items("pod", namespace):
        states = [found for found in pod["status"].get("containerStatuses", ()) if not found["ready"]]
        for found in states:
            name, state = pod["metadata"]["name"], json.dumps(found["state"])
            log = kube.run("logs", name, "-n", namespace, "-c", found["name"], "--tail=8", check=False)
            told.append(f"pod {name} is not ready: {state}\n{log.rstrip()}")
        if not states and pod["status"]["phase"] != "Running":
            told.append(f"pod {pod['metadata']['name']}: {json.dumps(pod['status'].get('conditions', ()))}")
    return "\n".join(told) or f"every pod in namespace {namespace} is ready"


def set_keys(kube: Kube, namespace: str, tenant: str, keys: dict[str, Key]) -> None:
    """Let keys identify a tenant."""
    entries = [{"name": name, "sha256": key.sha256} for name, key in keys.items()]
    kube.patch("tenant.headrace.dev", tenant, namespace, {"spec": {"apiKeys": entries}})
