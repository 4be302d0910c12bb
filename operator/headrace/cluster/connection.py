"""Where the API server is and how to prove who we are: a pod's service account, else the kubeconfig."""

from __future__ import annotations

import atexit
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cluster.errors import NotConfigured

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE_S = 60.0  # a mounted token is rotated by kubelet: read it again after so long


@dataclass
class Connection:
    """Facts of one API server. `load_token` gives the present bearer token, or None with a client certificate."""

    server: str  # https://host:port
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
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
        """For connections to the server."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Connection | None:
    """The service account of this pod; None outside a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = folder / "token"
    if not host or not token_file.is_file():
        return None

    async def read() -> str | None:
        return token_file.read_text(encoding="utf-8").strip()

    host = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{host}:{port}",
        ca_file=str(folder / "ca.crt"),
        load_token=read,
        reload_after_s=TOKEN_AGE_S,
    )


def kubeconfig_path(path: str | None = None) -> str:
    """The kubeconfig in force: the argument, $KUBECONFIG, or ~/.kube/config."""
    return path or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


async def from_kubeconfig(path: str | None = None) -> Connection:
    """The current context of a kubeconfig, exec plugins included. Raises NotConfigured."""
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_kube_config
    from yaml import YAMLError

    where = kubeconfig_path(path)
    folder = tempfile.mkdtemp(prefix="headrace-kubeconfig-")  # certificates of the kubeconfig, for as long as we run
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    async def load() -> Configuration:
        configuration = Configuration()
        await load_kube_config(where, client_configuration=configuration, persist_config=False, temp_file_path=folder)
        return configuration

    async def token() -> str | None:
        bearer = (await load()).api_key.get("BearerToken")
        return None if bearer is None else str(bearer).removeprefix("Bearer ")

    try:
        configuration = await load()
    except (ConfigException, OSError, YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        said = " ".join(str(error).split())  # the loader takes the file's form for granted
        raise NotConfigured(
            f"no cluster: not in a pod, and {where} is no usable kubeconfig ({said}); set KUBECONFIG"
        ) from error
    server = str(configuration.host or "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise NotConfigured(f"no cluster: {where} names no server as https://HOST:PORT; set KUBECONFIG")
    return Connection(
        server=server,
        ca_file=configuration.ssl_ca_cert,
        certificate_file=configuration.cert_file,
        key_file=configuration.key_file,
        proxy=configuration.proxy,
        verify=bool(configuration.verify_ssl),
        load_token=token,
    )


async def discover(kubeconfig: str | None = None) -> Connection:
    """In a pod its service account, unless a kubeconfig is named; elsewhere the kubeconfig. Raises NotConfigured."""
    pod = None if kubeconfig or os.environ.get("KUBECONFIG") else in_cluster()
    return pod if pod is not None else await from_kubeconfig(kubeconfig)
