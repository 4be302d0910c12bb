"""A cluster of the user's own, named by KUBECONFIG: what it takes to play on it, and what is removed from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster import binaries
from cluster.errors import ClusterError
from cluster.paths import Layout
from rig.install import Images, drop_definitions, is_ours
from rig.kube import CommandFailed, Kube

IMAGE_VARIABLES = ("HEADRACE_CONTROL_PLANE_IMAGE", "HEADRACE_ENGINE_IMAGE")


def kubeconfig() -> Path | None:
    """What KUBECONFIG names, as kubectl reads it; None where it is not set or names an embedded instance.

    Raises ClusterError where nothing of what it names is there.
    """
    named = os.environ.get("KUBECONFIG")
    if not named:
        return None
    files = [Path(part) for part in named.split(os.pathsep) if part]
    embedded = Layout.of("any").home.parent.resolve()
    if files and all(file.resolve().is_relative_to(embedded) for file in files):
        return None
    if not any(file.is_file() for file in files):
        raise ClusterError(
            f"KUBECONFIG names {named}, which is not there: correct it, or unset it for an embedded cluster"
        )
    return Path(named)


def images() -> Images:
    """The images that the user's cluster pulls. Raises ClusterError where none are named."""
    control, engine = (os.environ.get(variable) for variable in IMAGE_VARIABLES)
    if not control or not engine:
        raise ClusterError(
            f"KUBECONFIG is set: name the images that your cluster can pull in {' and '.join(IMAGE_VARIABLES)} "
            "(README, Images), or unset KUBECONFIG for an embedded cluster"
        )
    return Images(control, engine)


def connect(config: Path) -> Kube:
    """The user's cluster through the machine's kubectl and helm. Raises ClusterError where it does not answer."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ClusterError("KUBECONFIG is set, but kubectl is not on the PATH: install it")
    kube = Kube((kubectl,), (shutil.which("helm") or str(binaries.helm()),), config)
    try:
        kube.run("get", "--raw", "/version", "--request-timeout=15s")
    except CommandFailed as error:
        raise ClusterError(
            f"the cluster of KUBECONFIG={config} does not answer: correct it, or unset it for an embedded cluster "
            f"({str(error).splitlines()[-1]})"
        ) from error
    return kube


def clear(kube: Kube, releases: Sequence[str], namespaces: Sequence[str]) -> None:
    """Remove releases and namespaces that this program made, and the definitions that it brought if none needs them."""
    print(f"On the cluster of {kube.kubeconfig}, only what this program made there is removed:")
    found = [name for name in (*namespaces, *releases) if is_ours(kube, name)]
    for namespace in [name for name in found if name in namespaces]:
        if kube.run("get", "crd", "models.headrace.dev", "--ignore-not-found", "-o", "name").strip():
            kube.run("delete", "models.headrace.dev", "--all", "-n", namespace, "--ignore-not-found", "--wait=true")
        _delete(kube, namespace)
    for release in [name for name in found if name in releases]:
        kube.run_helm("uninstall", "headrace", "-n", release, "--ignore-not-found")
        kube.run_helm("uninstall", "headrace-crds", "-n", release, "--ignore-not-found")
        _delete(kube, release)
    if not found:
        print("  nothing of it is there")
    print(f"  {drop_definitions(kube)}")


def _delete(kube: Kube, namespace: str) -> None:
    kube.run("delete", "namespace", namespace, "--ignore-not-found", "--wait=true", timeout=300)
    print(f"  namespace {namespace} and all in it")
