"""Command lines of etcd and kube-apiserver (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.pki import Pair

ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True)
class Etcd:
    """An etcd of one member that does not wait for the disk: what it holds is as lasting as the test."""

    folder: Path
    client_port: int
    peer_port: int

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.client_port}"

    def argv(self) -> list[str]:
        """The command line."""
        peer = f"http://127.0.0.1:{self.peer_port}"
        return [
            "etcd",
            "--name=single",
            f"--data-dir={self.folder}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=single={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            "--logger=zap",
        ]


@dataclass(frozen=True)
class Apiserver:
    """A kube-apiserver; `extra` are flags that only one of its users needs."""

    kube: str
    etcd_url: str
    address: str
    port: int
    service_cidr: str
    client_ca: Path
    serving: Pair
    service_account: Pair
    extra: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The command line."""
        return [
            self.kube,
            "kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={self.service_cidr}",
            f"--client-ca-file={self.client_ca}",
            f"--tls-cert-file={self.serving.cert}",
            f"--tls-private-key-file={self.serving.key}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={self.service_account.cert}",
            f"--service-account-signing-key-file={self.service_account.key}",
            "--allow-privileged=true",
            "--profiling=false",
            *self.extra,
        ]
