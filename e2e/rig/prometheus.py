"""Debian's Prometheus beside an embedded cluster: in its network namespace, so that pods and machine reach it alike.

Debian builds it without discovery in Kubernetes: a thread here writes the pods into a file that it watches.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from rig.kube import CommandFailed, Kube, wait_until
from rig.world import World

PORT = 9090
EVERY = "1s"  # between scrapes
LOOK_S = 2.0  # between looks at the pods
SCRAPED = (
    ("app.kubernetes.io/component", "operator", "http"),
    ("app.kubernetes.io/component", "gateway", "state"),
    ("headrace.dev/role", "serve", "http"),
)  # label, its value, name of the port


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str
    process: subprocess.Popen[bytes]

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The vector of an instant query; empty while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=5
            ) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()


def config(targets: Path) -> dict[str, Any]:
    """Scrapes what a file names."""
    job = {"job_name": "headrace", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": EVERY}]}
    return {"global": {"scrape_interval": EVERY, "scrape_timeout": EVERY}, "scrape_configs": [job]}


def targets_of(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics ports of operators, gateways and engines that have an address."""
    found = []
    for pod in pods:
        labels, address = pod["metadata"].get("labels", {}), pod["status"].get("podIP")
        wanted = {port for label, value, port in SCRAPED if labels.get(label) == value}
        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
        found += [
            {"targets": [f"{address}:{port['containerPort']}"], "labels": {"pod": pod["metadata"]["name"]}}
            for port in ports
            if address and port.get("name") in wanted
        ]
    return found


class _Discovery(threading.Thread):
    """Keeps the file of targets as the pods are, until told to end."""

    def __init__(self, kube: Kube, namespaces: list[str], file: Path):
        super().__init__(daemon=True)
        self._kube, self._namespaces, self._file = kube, namespaces, file
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            with contextlib.suppress(CommandFailed):  # looked at again soon
                pods = [pod for namespace in self._namespaces for pod in self._kube.items("pod", namespace)]
                fresh = self._file.with_suffix(".new")
                fresh.write_text(json.dumps(targets_of(pods)))
                fresh.replace(self._file)
            self.done.wait(LOOK_S)


@contextmanager
def prometheus(world: World, namespaces: list[str]) -> Iterator[Prometheus]:
    """Prometheus, scraping the pods of these namespaces; gone with its data at the end. Raises ClusterError."""
    program = shutil.which("prometheus")
    if program is None:
        raise ClusterError("prometheus is not installed: run `make setup`")
    node = world.kube.run(
        "get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}"
    )
    url = f"http://{node}:{PORT}"
    with tempfile.TemporaryDirectory(prefix="headrace-prometheus-") as folder:
        file, log, targets = (Path(folder) / name for name in ("prometheus.yaml", "log", "targets.json"))
        file.write_text(json.dumps(config(targets)))
        discovery = _Discovery(world.kube, namespaces, targets)
        command = [
            *world.inside, program, f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={node}:{PORT}", "--log.level=warn",
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        discovery.start()
        try:
            wait_until("Prometheus is ready", lambda: _ready(url, process, log), within=60)
            yield Prometheus(url, process)
        finally:
            discovery.done.set()
            discovery.join()
            process.kill()
            process.wait()


def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise ClusterError(f"prometheus ended: {log.read_text()[-1000:]}")
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
