"""etcd and kube-apiserver alone, on loopback: for tests of the API (schemas, CEL, server-side apply, watches, RBAC).

There is no node, scheduler, controller or garbage collector behind it: Pods stay Pending,
owned objects stay when their owner goes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cluster import binaries, kubeconfig
from cluster.client import Client
from cluster.controlplane import Apiserver, Etcd
from cluster.errors import ClusterError, require_tools
from cluster.pki import Authority, Pair, signing_key
from cluster.process import Process, spawn, tail_of_file, wait_until

READY_WITHIN = 60.0  # seconds; about 2 s on an idle machine
ATTEMPTS = 3  # a free port may be taken between the look and the bind
NO_CONTROLLERS = "ServiceAccount"  # admission that waits for what only controller-manager makes


@dataclass(frozen=True)
class Ports:
    """Three free ports of loopback."""

    client: int
    peer: int
    api: int

    @staticmethod
    def free() -> Ports:
        """Ask the kernel; all three are held until all are known, so that they differ."""
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            return Ports(*(one.getsockname()[1] for one in sockets))


class ApiServer:
    """A Kubernetes API server for as long as the `with` block lasts.

    `kube` is the multi-call binary (built or taken from the cache if not given); `flags`
    are further kube-apiserver flags. Its data is gone afterwards.
    """

    url: str  # https://127.0.0.1:PORT
    token: str  # bearer token of a member of system:masters
    ca_file: Path
    kubeconfig: Path  # of the same administrator

    def __init__(self, kube: Path | None = None, flags: Sequence[str] = ()) -> None:
        self._kube = kube
        self._flags = tuple(flags)
        self._processes: list[Process] = []
        self.folder = Path()

    def __enter__(self) -> ApiServer:
        require_tools("etcd", "openssl", "setpriv")
        self._kube = self._kube or binaries.kube()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-api-"))
        try:
            self._prepare()
            for _ in range(ATTEMPTS):
                if self._start():
                    return self
            told = "\n".join(f"--- {log.name}\n{tail_of_file(log)}" for log in sorted(self.folder.glob("*.log")))
            raise ClusterError(f"the API server was not ready within {READY_WITHIN:.0f} s:\n{told}")
        except BaseException:
            self._stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def kubectl(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; the caller judges its return code."""
        command = [str(self._kube), "kubectl", f"--kubeconfig={self.kubeconfig}", *args]
        environment = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run(command, input=stdin, env=environment, text=True, capture_output=True, check=False)

    def kubeconfig_as(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of another user, known by a client certificate; RBAC decides what it may do."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        name = f"user-{secrets.token_hex(4)}"
        pair = self._authority.issue(name, subject)
        content = kubeconfig.render(self.url, self._authority.pair, kubeconfig.client_pair(pair))
        return kubeconfig.write(self.folder / f"{name}.kubeconfig", content)

    def _prepare(self) -> None:
        self._authority = Authority.create(self.folder / "pki")
        self.ca_file = self._authority.pair.cert
        self.token = secrets.token_hex(16)
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        self._serving = self._authority.issue("apiserver", "/CN=kube-apiserver", ("IP:127.0.0.1", "DNS:localhost"))
        self._admin = self._authority.issue("admin", "/O=system:masters/CN=admin")
        self._accounts = signing_key(self._authority.folder, "service-accounts")

    def _start(self) -> bool:
        """Whether both are up; if not, neither is left."""
        ports = Ports.free()
        etcd = Etcd(self.folder / "etcd", ports.client, ports.peer)
        self.url = f"https://127.0.0.1:{ports.api}"
        tied = ["setpriv", "--pdeathsig", "KILL", "--"]  # none outlives this process
        commands = {"etcd": etcd.argv(), "kube-apiserver": self._apiserver(etcd, ports.api).argv()}
        self._processes = [
            spawn(name, [*tied, *command], self.folder / f"{name}.log") for name, command in commands.items()
        ]
        client = Client(self.url, self._authority.pair, self._admin)
        wait_until(lambda: client.ready() or not self._all_alive(), READY_WITHIN)
        if not (self._all_alive() and client.ready()):
            self._kill()
            return False
        content = kubeconfig.render(self.url, self._authority.pair, {"token": self.token})
        self.kubeconfig = kubeconfig.write(self.folder / "kubeconfig", content)
        return True

    def _apiserver(self, etcd: Etcd, port: int) -> Apiserver:
        extra = (
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins={NO_CONTROLLERS}",
            "--advertise-address=192.0.2.1",  # loopback is refused here; nothing reads it
            "--endpoint-reconciler-type=none",
            *self._flags,
        )
        pair: Pair = self._serving
        return Apiserver(
            str(self._kube), etcd.url, "127.0.0.1", port, "10.0.0.0/24", self.ca_file, pair, self._accounts, extra
        )

    def _all_alive(self) -> bool:
        return all(process.alive for process in self._processes)

    def _kill(self) -> None:
        """At once: SIGTERM would make kube-apiserver wait a minute for open watches."""
        for process in reversed(self._processes):
            process.stop(signal.SIGKILL)
        self._processes = []
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _stop(self) -> None:
        self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)
