"""The cluster that demo and tests play on: the user's, named by KUBECONFIG, or an embedded one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, cache, images, instance, network, teardown
from cluster.addresses import check_name
from cluster.errors import ClusterError
from cluster.instance import Instance
from rig import foreign
from rig.chat import Endpoint
from rig.install import ROOT, Images
from rig.kube import Kube

GATEWAY = "headrace-gateway"
GATEWAY_PORT = 80


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


def check() -> None:
    """Raise ClusterError for what a user's cluster lacks, before minutes are spent; an embedded one lacks nothing."""
    own = foreign.kubeconfig()
    if own is not None:
        foreign.images()
        foreign.connect(own)


def claim(name: str) -> None:
    """Raise ClusterError where another checkout runs the embedded instance, which a user's cluster has no part in."""
    if foreign.kubeconfig() is None:
        cure = (
            "use it there, take another name (`make demo ARGS='--name mine'`), "
            "or make it this checkout's (`ARGS=--force`)"
        )
        Instance(check_name(name)).claim(cure)


def parts() -> tuple[str, ...]:
    """What of `cluster setup` a run needs; a user's cluster has Kubernetes, and pulls its images."""
    return ("binaries", "venv", "images") if foreign.kubeconfig() is None else ("venv",)


def prepare(kinds: Sequence[str]) -> None:
    """Install what the machine lacks, with progress on the terminal. Raises ClusterError."""
    command = [sys.executable, "-m", "cluster", "setup", "--only", ",".join(kinds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    if subprocess.run(command, env=environment, check=False).returncode:
        raise ClusterError("the set-up failed; what went wrong stands above, and running it again goes on from there")


def open_world(name: str) -> World:
    """The user's cluster, else the embedded instance `name`, started, with the images in it."""
    own = foreign.kubeconfig()
    if own is not None:
        return World(foreign.connect(own), foreign.images(), None)
    started = instance.up(name)
    built = images.build_all()
    started.load(built.values())
    kube = Kube((str(binaries.kube()), "kubectl"), (str(binaries.helm()),), started.layout.kubeconfig)
    netns = network.NAMESPACES / started.plan().namespace
    return World(kube, Images(built["control-plane"], built["engine"]), netns)


def close_world(name: str, releases: Sequence[str], namespaces: Sequence[str]) -> None:
    """Remove what was started: the embedded instance, or what this program made on the user's cluster."""
    own = foreign.kubeconfig()
    if own is not None:
        foreign.clear(foreign.connect(own), releases, namespaces)
        return
    if _is_there(name):
        instance.down(name)
        print(f"The embedded cluster {name} is gone; its image store and caches stay below {cache.root()}.")
    else:
        others = sorted(file.parent.name for file in cache.root().glob("state/*/instance.json"))
        there = f"; those that are there, for --name: {', '.join(others)}" if others else ""
        print(f"There is no embedded cluster {name}{there}.")
    if Instance(name).layout.images.exists():
        print(f"`PYTHONPATH=e2e python3 -m cluster down --name {name} --purge` drops its image store, too.")


def _is_there(name: str) -> bool:
    """Whether anything of an embedded instance, its image store apart, is on this machine."""
    found = Instance(check_name(name))
    return found.layout.record.exists() or bool(teardown.leftovers(found.plan(), found.layout))
