"""Debian's Prometheus beside an embedded cluster: in its network namespace, so that pods and machine reach it alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from rig.kube import wait_until
from rig.world import World

PORT = 9090
EVERY = "1s"  # between scrapes
META = "__meta_kubernetes_pod_"
SCRAPED = r"operator;;http|gateway;;state|.*;serve;http"  # component; role; name of the port


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


def config(world: World, namespaces: list[str]) -> dict[str, Any]:
    """Scrapes the metrics ports of operator, gateway and engines."""
    labels = [f"{META}label_app_kubernetes_io_component", f"{META}label_headrace_dev_role"]
    discovery = {"role": "pod", "kubeconfig_file": str(world.kube.kubeconfig), "namespaces": {"names": namespaces}}
    keep = {"action": "keep", "source_labels": [*labels, f"{META}container_port_name"], "regex": SCRAPED}
    pod = {"source_labels": [f"{META}name"], "target_label": "pod"}
    job = {"job_name": "headrace", "kubernetes_sd_configs": [discovery], "relabel_configs": [keep, pod]}
    return {"global": {"scrape_interval": EVERY, "scrape_timeout": EVERY}, "scrape_configs": [job]}


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
        file, log = Path(folder) / "prometheus.yaml", Path(folder) / "log"
        file.write_text(json.dumps(config(world, namespaces)))
        command = [
            *world.inside, program, f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={node}:{PORT}", "--log.level=warn",
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until("Prometheus is ready", lambda: _ready(url, process, log), within=60)
            yield Prometheus(url, process)
        finally:
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
