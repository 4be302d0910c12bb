"""Where an instance keeps what: every path under one folder, so that removing the folder removes it all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster import cache


@dataclass(frozen=True)
class Layout:
    """The folders and files of one instance.

    `images` outlives `down`; everything under `run` is made by `up` and removed by `down`.
    """

    home: Path

    @staticmethod
    def of(name: str) -> Layout:
        """The layout of the instance `name`."""
        return Layout(cache.root() / "state" / name)

    @property
    def lock(self) -> Path:
        """Held by `up` and `down`; beside the folder, since `down --purge` removes the folder."""
        return self.home.with_name(f"{self.home.name}.lock")

    @property
    def images(self) -> Path:
        """containerd's root: content, snapshots, image names."""
        return self.home / "images"

    @property
    def run(self) -> Path:
        """Everything of one run: data, sockets, logs, certificates."""
        return self.home / "run"

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.run / "pki"

    @property
    def config(self) -> Path:
        """Configuration files and the parts' own kubeconfigs."""
        return self.run / "config"

    @property
    def logs(self) -> Path:
        """One log per part."""
        return self.run / "logs"

    @property
    def kubelet(self) -> Path:
        """kubelet's root: volumes of pods are mounted below it."""
        return self.run / "kubelet"

    @property
    def pod_logs(self) -> Path:
        """What containers print."""
        return self.run / "pods"

    @property
    def containerd_state(self) -> Path:
        """containerd's mounts and bundles of running containers."""
        return self.run / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd answers."""
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.home / "kubeconfig"

    @property
    def record(self) -> Path:
        """Plan and processes of the run, for `status` and `down`."""
        return self.home / "instance.json"

    def log(self, part: str) -> Path:
        """The log of one part."""
        return self.logs / f"{part}.log"
