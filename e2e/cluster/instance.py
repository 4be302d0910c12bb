"""Bringing an instance up, and looking at one."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cluster import addresses, binaries, cache, configs, images, network, parts, pause, seed, teardown
from cluster.addresses import Plan
from cluster.cgroups import Groups
from cluster.client import Client
from cluster.context import ROOT
from cluster.errors import ClusterError, require_root, require_tools
from cluster.nodeimages import NodeImages
from cluster.oci import Image
from cluster.paths import Layout
from cluster.pki import Pair
from cluster.process import succeeds, tail_of_file, wait_until
from cluster.progress import say, step
from cluster.record import Record
from cluster.storage import Storage

TOOLS = ("containerd", "ctr", "runc", "etcd", "iptables", "conntrack", "ip", "nsenter", "openssl", "mount")
DEADLINE = 120.0  # seconds for each wait of `up`; an idle machine needs 15 in all
BEFORE_API = ("etcd", "containerd", "kube-apiserver")
AFTER_API = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")


@dataclass(frozen=True)
class Instance:
    """A named cluster: at most one of a name on a machine."""

    name: str

    @property
    def layout(self) -> Layout:
        """Its files."""
        return Layout.of(self.name)

    def plan(self) -> Plan:
        """Its addresses: those it runs with, else those it would get now."""
        record = Record.load(self.layout.record)
        return record.plan if record else addresses.choose(self.name, network.machine_routes())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one `up` or `down` of an instance at a time."""
        with cache.locked(self.layout.lock, f"instance {self.name}"):
            yield

    def client(self, plan: Plan) -> Client:
        """Speaks to its API server as administrator."""
        pki = self.layout.pki
        authority = Pair(pki / "ca.crt", pki / "ca.key")
        return Client(plan.api_url, authority, Pair(pki / "admin.crt", pki / "admin.key"))

    def images(self) -> NodeImages:
        """The images of its node."""
        if not self.layout.containerd_socket.exists():
            raise ClusterError(f"instance {self.name} is down: run `python3 -m cluster up --name {self.name}` first")
        return NodeImages(self.layout.containerd_socket)

    def load(self, names: Iterable[str]) -> None:
        """Bring images of the machine's storage into its node; those that are there cost nothing.

        Images that are neither among them nor what this checkout would build now are dropped.
        """
        node = self.images()
        names = list(names)
        storage = Storage.default()
        for name in names:
            image = storage.find(name)
            if image is None:
                raise ClusterError(f"no image {name}: run `PYTHONPATH=e2e python3 -m cluster images` first")
            node.load(image)
        node.drop_all_but({*names, *images.current().values()})

    def claim(self, cure: str) -> None:
        """Raise ClusterError, ending with `cure`, where another checkout has started it and it runs."""
        record = Record.load(self.layout.record)
        if record and record.held_by_other(ROOT):
            raise ClusterError(f"instance {self.name} was started from {record.owner} and runs: {cure}")

    def problems(self) -> list[str]:
        """Why it is not healthy, a line each; empty if it is."""
        record = Record.load(self.layout.record)
        if record is None:
            return ["not started"]
        if dead := record.dead():
            return [f"{name} has ended; {self.layout.log(name)} ends with: {self._tail(name, 1)}" for name in dead]
        if not network.exists(record.plan):
            return [f"network namespace {record.plan.namespace} is gone"]
        if not self.layout.kubeconfig.exists():
            return ["its kubeconfig is gone"]
        if not _node_ready(self.client(record.plan), record.plan):
            return ["the node is not Ready"]
        return []

    def _tail(self, part: str, lines: int = 15) -> str:
        return tail_of_file(self.layout.log(part), lines)


def up(name: str, gpus: int | None = None) -> Instance:
    """Start the instance, or leave it if it is healthy, or take it down and start it if it is half dead.

    `gpus`: how many nvidia.com/gpu the node counts from now on; None leaves that as it is.
    """
    require_root("an embedded cluster")
    require_tools(*TOOLS)
    instance = Instance(addresses.check_name(name))
    kube = binaries.kube()
    pause_image = pause.image()
    with instance.locked():
        record = Record.load(instance.layout.record)
        problems = instance.problems()
        owner = str(ROOT)
        if record and record.kube != str(kube):
            problems.append("it runs another version of Kubernetes")
        if problems:
            plan = instance.plan()
            if record or teardown.leftovers(plan, instance.layout):
                say("up", f"instance {name} is not healthy ({'; '.join(problems)}): starting it anew")
                teardown.down(plan, instance.layout)
            plan = instance.plan()
            with step("up", f"starting instance {name} in network namespace {plan.namespace}", "15 s"):
                _Start(instance, Record(plan, str(kube), pause_image.name, owner=owner), pause_image).run()
        elif record and record.owner != owner:
            replace(record, owner=owner).save(instance.layout.record)
        plan = instance.plan()
        if gpus is None:
            return instance
        instance.client(plan).patch(f"/api/v1/nodes/{plan.namespace}/status", configs.gpu_patch(gpus))
    return instance


def down(name: str, purge: bool = False) -> None:
    """Stop and remove the instance; with `purge` its image store too."""
    require_root("taking a cluster down")
    instance = Instance(addresses.check_name(name))
    with instance.locked():
        teardown.down(instance.plan(), instance.layout)
        if purge:
            teardown.purge(instance.layout)


class _Start:
    """One start, step by step; what it began is written down before anything can fail."""

    def __init__(self, instance: Instance, record: Record, pause_image: Image) -> None:
        self._pause = pause_image
        self._instance = instance
        self._layout = instance.layout
        self._plan = record.plan
        self._record = record
        self._client = instance.client(record.plan)

    def run(self) -> None:
        plan, layout = self._plan, self._layout
        seed.from_neighbour(layout)
        for folder in (layout.images, layout.config, layout.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._record.save(layout.record)
        Groups(plan.namespace).create()
        network.create(plan)
        credentials = parts.write_credentials(plan, layout)
        parts.write_configs(plan, layout, self._record.pause)
        commands = parts.commands(plan, layout, self._record.kube, credentials)
        self._spawn(commands, BEFORE_API)
        self._await("containerd", "containerd", self._containerd_answers)
        self._instance.images().load(self._pause)
        self._await("API server ready", "kube-apiserver", self._client.ready)
        self._spawn(commands, AFTER_API)
        for path, item in configs.dns_access().items():
            self._client.create(path, item)
        self._await_node()

    def _spawn(self, commands: dict[str, list[str]], names: tuple[str, ...]) -> None:
        for name in names:
            process = parts.start(name, commands[name], self._plan, self._layout)
            self._record = replace(self._record, processes=(*self._record.processes, process))
            self._record.save(self._layout.record)

    def _await_node(self) -> None:
        plan = self._plan
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        dns = f"http://{plan.node_ip}:{configs.DNS_READY_PORT}/ready"
        proxy = f"http://{plan.node_ip}:{configs.PROXY_HEALTH_PORT}/healthz"
        self._await("node Ready", "kubelet", lambda: _node_ready(self._client, plan))
        self._await("service accounts", "kube-controller-manager", lambda: self._client.get(account) is not None)
        self._await("Services", "kube-proxy", lambda: _says_ok(proxy))
        self._await("DNS", "coredns", lambda: _says_ok(dns))

    def _containerd_answers(self) -> bool:
        return succeeds(["ctr", "--address", str(self._layout.containerd_socket), "version"])

    def _await(self, what: str, part: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition; ClusterError with the end of the right log if it does not come."""
        ended = wait_until(lambda: condition() or bool(self._record.dead()), DEADLINE)
        dead = self._record.dead()
        if dead or not ended:
            culprit = dead[0] if dead else part
            why = f"{culprit} ended" if dead else f"not after {DEADLINE:.0f} s"
            log = self._layout.log(culprit)
            raise ClusterError(f"{what}: {why}; the end of {log}:\n{tail_of_file(log)}")


def _node_ready(client: Client, plan: Plan) -> bool:
    node = client.get(f"/api/v1/nodes/{plan.namespace}")
    conditions = node["status"].get("conditions", []) if node else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _says_ok(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
