"""The cluster that demo and tests play on: the user's, named by KUBECONFIG, or an embedded one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, images, instance, network
from cluster.errors import ClusterError
from cluster.paths import Layout
from rig.chat import Endpoint
from rig.install import ROOT, Images, is_ours
from rig.kube import Kube

GATEWAY = "headrace-gateway"
GATEWAY_PORT = 80
IMAGE_VARIABLES = ("HEADRACE_CONTROL_PLANE_IMAGE", "HEADRACE_ENGINE_IMAGE")


@dataclass(frozen=True)
class World:
    """A cluster, the images that its pods run, and the way in."""

    kube: Kube
    images: Images
    netns: Path | None  # the embedded cluster's network namespace; None: a foreign cluster

    @property
    def inside(self) -> tuple[str, ...]:
        """Command prefix that enters the embedded cluster's network."""
        return ("nsenter", f"--net={self.netns}", "--") if self.netns else ()

    def cluster_ip(self, release: str) -> str:
        """Address of the gateway's Service."""
        return self.kube.run("get", "service", GATEWAY, "-n", release, "-o", "jsonpath={.spec.clusterIP}").strip()

    @contextmanager
    def gateway(self, release: str) -> Iterator[str]:
        """URL at which the gateway answers on the machine's loopback."""
        if self.netns is None:
            with self.kube.forward(release, f"service/{GATEWAY}", GATEWAY_PORT) as url:
                yield url
            return
        with _doorway(self.netns, f"{self.cluster_ip(release)}:{GATEWAY_PORT}") as port:
            yield f"http://127.0.0.1:{port}"

    def endpoint_for_load(self, release: str, url: str, key: str) -> Endpoint:
        """Where a load generator started with `inside` calls: the Service itself, else `url`."""
        if self.netns is None:
            return Endpoint(url, key)
        return Endpoint(f"http://{self.cluster_ip(release)}:{GATEWAY_PORT}", key)


@contextmanager
def _doorway(netns: Path, target: str) -> Iterator[int]:
    command = [sys.executable, "-m", "rig.doorway", "--netns", str(netns), "--target", target]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as door:
        try:
            line = door.stdout.readline() if door.stdout else ""
            if not line:
                raise ClusterError(f"the door into {netns} did not open: is this root?")
            yield int(line)
        finally:
            door.terminate()


def foreign() -> Path | None:
    """The user's kubeconfig, where one is set; one of an embedded instance is none. Raises ClusterError."""
    named = os.environ.get("KUBECONFIG")
    if not named or Path(named).resolve().is_relative_to(Layout.of("any").home.parent.resolve()):
        return None
    if not Path(named).is_file():
        raise ClusterError(
            f"KUBECONFIG names {named}, which is not there: correct it, or unset it for an embedded cluster"
        )
    return Path(named)


def prepare(kinds: Sequence[str] = ("binaries", "venv", "images")) -> None:
    """Install what the machine lacks, with progress on the terminal. A foreign cluster needs no images."""
    wanted = [kind for kind in kinds if kind != "images" or foreign() is None]
    command = [sys.executable, "-m", "cluster", "setup", "--only", ",".join(wanted)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    if subprocess.run(command, env=environment, check=False).returncode:
        raise ClusterError("the set-up failed; what went wrong stands above, and running it again goes on from there")


def open_world(name: str) -> World:
    """The user's cluster, else the embedded instance `name`, started, with the images in it."""
    helm = (str(binaries.helm()),)
    own = foreign()
    if own is not None:
        return World(Kube((_kubectl(),), helm, own), _named_images(), None)
    started = instance.up(name)
    built = images.build_all()
    started.load(built.values())
    kube = Kube((str(binaries.kube()), "kubectl"), helm, started.layout.kubeconfig)
    netns = network.NAMESPACES / started.plan().namespace
    return World(kube, Images(built["control-plane"], built["engine"]), netns)


def _kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise ClusterError("KUBECONFIG is set, but kubectl is not on the PATH: install it")
    return found


def _named_images() -> Images:
    control, engine = (os.environ.get(variable) for variable in IMAGE_VARIABLES)
    if not control or not engine:
        raise ClusterError(
            f"KUBECONFIG is set: name the images that your cluster can pull in {' and '.join(IMAGE_VARIABLES)} "
            "(README, Images), or unset KUBECONFIG for an embedded cluster"
        )
    return Images(control, engine)


def close_world(name: str, releases: Sequence[str], namespaces: Sequence[str]) -> None:
    """Remove what was started: the embedded instance, or the releases and namespaces on the user's cluster."""
    own = foreign()
    if own is None:
        instance.down(name)
        print(f"The embedded cluster {name} is gone; its image store and caches stay below ~/.cache/headrace.")
        return
    kube = Kube((_kubectl(),), (str(binaries.helm()),), own)
    print(f"On the cluster of {own}, only what this program made there is removed:")
    for namespace in [n for n in namespaces if is_ours(kube, n)]:
        kube.run("delete", "models.headrace.dev", "--all", "-n", namespace, "--ignore-not-found", "--wait=true")
        _delete(kube, namespace)
    for release in [n for n in releases if is_ours(kube, n)]:
        kube.run_helm("uninstall", "headrace", "-n", release, "--ignore-not-found")
        kube.run_helm("uninstall", "headrace-crds", "-n", release, "--ignore-not-found")
        _delete(kube, release)
    print("  the CustomResourceDefinitions stay: others may have objects of these kinds")


def _delete(kube: Kube, namespace: str) -> None:
    kube.run("delete", "namespace", namespace, "--ignore-not-found", "--wait=true", timeout=300)
    print(f"  namespace {namespace} and all in it")
