"""Where the API server is and how to prove who we are: a pod's service account, else the kubeconfig."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cluster.errors import NotConfigured

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]+-----\s[^-]*-----END [A-Z0-9 ]+-----")
TOKEN_AGE_S = 60.0  # a mounted token is rotated by kubelet: read it again after so long


@dataclass
class Connection:
    """Facts of one API server. `load_token` gives the present bearer token, or None with a client certificate.

    Certificates and keys are PEM, held in memory: a process that is killed leaves no file behind.
    """

    server: str  # https://host:port
    ca: str | None = None  # None: the system's
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    proxy: str | None = None
    verify: bool = True
    load_token: Callable[[], Awaitable[str | None]] | None = None
    reload_after_s: float | None = None  # None: only when the server answered 401
    clock: Callable[[], float] = time.monotonic
    _token: str | None = field(default=None, repr=False)
    _loaded_at: float | None = None

    async def token(self, *, stale: bool = False) -> str | None:
        """The bearer token; `stale` asks for a new one."""
        if self.load_token is None:
            return None
        now = self.clock()
        old = self._loaded_at is None or (
            self.reload_after_s is not None and now - self._loaded_at >= self.reload_after_s
        )
        if old or stale:
            self._token = await self.load_token()
            self._loaded_at = now
        return self._token

    def ssl_context(self) -> ssl.SSLContext:
        """For connections to the server. Raises OSError for certificates that are none."""
        context = ssl.create_default_context(cadata=self.ca)
        if self.certificate:
            with tempfile.NamedTemporaryFile("w") as pair:  # ssl takes a client's certificate from a file only
                pair.write(f"{self.certificate}\n{self.key or ''}\n")
                pair.flush()
                context.load_cert_chain(pair.name)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Connection | None:
    """The service account of this pod; None outside a pod. Raises NotConfigured."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = folder / "token"
    if not host or not token_file.is_file():
        return None

    async def read() -> str | None:
        return token_file.read_text(encoding="utf-8").strip()

    host = f"[{host}]" if ":" in host else host
    try:
        ca = _pem(folder / "ca.crt")
    except (OSError, ValueError) as error:
        raise NotConfigured(f"no cluster: the pod's service account has no readable ca.crt ({error})") from error
    return Connection(
        server=f"https://{host}:{port}",
        ca=ca,
        load_token=read,
        reload_after_s=TOKEN_AGE_S,
    )


def kubeconfig_path(path: str | None = None) -> str:
    """The kubeconfig in force: the argument, $KUBECONFIG, or ~/.kube/config."""
    return path or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _exists(where: str) -> bool:
    """At least one of the files, of which $KUBECONFIG may name several."""
    return any(Path(one).expanduser().exists() for one in where.split(os.pathsep) if one)


async def from_kubeconfig(path: str | None = None) -> Connection:
    """The current context of a kubeconfig, exec plugins included. Raises NotConfigured."""
    from kubernetes.aio.config import ConfigException
    from yaml import YAMLError

    where = kubeconfig_path(path)
    if not _exists(where):
        raise NotConfigured(f"no cluster: not in a pod, and there is no kubeconfig {where}; set KUBECONFIG")

    async def token() -> str | None:
        return (await _load(where)).token

    try:
        loaded = await _load(where)
    except (ConfigException, OSError, YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        said = " ".join(str(error).split())  # the loader takes the file's form for granted
        raise NotConfigured(
            f"no cluster: not in a pod, and {where} is no usable kubeconfig ({said}); set KUBECONFIG"
        ) from error
    server = loaded.server
    if not server.startswith(("http://", "https://")):
        raise NotConfigured(f"no cluster: {where} names no server as https://HOST:PORT; set KUBECONFIG")
    return Connection(
        server=server,
        ca=loaded.ca,
        certificate=loaded.certificate,
        key=loaded.key,
        proxy=loaded.proxy,
        verify=loaded.verify,
        load_token=token,
    )


@dataclass(frozen=True)
class _Loaded:
    """What a kubeconfig says now, after its exec plugin has run."""

    server: str
    ca: str | None
    certificate: str | None
    key: str | None
    proxy: str | None
    verify: bool
    token: str | None


async def _load(where: str) -> _Loaded:
    """Raises what the loader, which takes the file's form for granted, may raise."""
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import kube_config

    said = Configuration()
    with tempfile.TemporaryDirectory(prefix="headrace-kubeconfig-") as folder:  # the loader writes embedded data there
        try:
            await kube_config.load_kube_config(
                where, client_configuration=said, persist_config=False, temp_file_path=folder
            )
            ca, certificate, key = map(_read, (said.ssl_ca_cert, said.cert_file, said.key_file))
        finally:
            written = kube_config._temp_files  # it would give the same names again
            for content in [content for content, name in written.items() if name.startswith(folder)]:
                del written[content]
    bearer = said.api_key.get("BearerToken")
    return _Loaded(
        server=str(said.host or "").rstrip("/"),
        ca=ca,
        certificate=certificate,
        key=key,
        proxy=said.proxy,
        verify=bool(said.verify_ssl),
        token=None if bearer is None else str(bearer).removeprefix("Bearer "),
    )


def _read(file: str | None) -> str | None:
    return None if file is None else _pem(Path(file))


def _pem(file: Path) -> str:
    """The PEM blocks of a file, without what may stand around them. Raises OSError, ValueError."""
    blocks = _BLOCK.findall(file.read_text(encoding="utf-8"))
    if not blocks:
        raise ValueError(f"{file} holds no PEM block")
    return "\n".join([*blocks, ""])


async def discover(kubeconfig: str | None = None) -> Connection:
    """In a pod its service account, unless a kubeconfig is named; elsewhere the kubeconfig. Raises NotConfigured."""
    pod = None if kubeconfig or os.environ.get("KUBECONFIG") else in_cluster()
    return pod if pod is not None else await from_kubeconfig(kubeconfig)
