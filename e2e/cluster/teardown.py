"""Taking an instance down, and proving that nothing of it is left."""

from __future__ import annotations

import contextlib
import shutil
import signal
from pathlib import Path

from cluster import network
from cluster.addresses import Plan
from cluster.cgroups import Groups, kill_all
from cluster.errors import ClusterError
from cluster.paths import Layout
from cluster.process import run, succeeds, wait_until
from cluster.progress import step
from cluster.record import Record

FIRST = ("kubelet", "kube-proxy", "coredns", "kube-scheduler", "kube-controller-manager")
LAST = ("containerd", "kube-apiserver", "etcd")
CNI_RESULTS = Path("/var/lib/cni/results")  # fixed in the CNI library, shared by all its users
CONTAINER_LINKS = Path("/var/log/containers")  # fixed in kubelet


def down(plan: Plan, layout: Layout) -> None:
    """Stop and remove everything but the image store; ClusterError with a list if something stays."""
    record = Record.load(layout.record)
    with step("down", f"stopping instance {plan.name}", "5 s"):
        layout.kubeconfig.unlink(missing_ok=True)  # first, so that whoever uses it knows why nothing answers
        stop_parts(record, FIRST, signal.SIGTERM)
        bundles = list(layout.containerd_state.glob("io.containerd.runtime.v2.task/*/*"))
        traces = [trace for bundle in bundles for trace in _traces(bundle)]
        if record and (containerd := record.process("containerd")) and containerd.alive:
            _remove_containers(layout)
        # kube-apiserver would wait a minute for open watches.
        stop_parts(record, LAST, signal.SIGKILL)
        Groups(plan.namespace).kill()
        kill_all(network.pids(plan.namespace))
        pods = network.pod_namespaces(plan)
        unmount(layout.home)
        network.remove(plan, pods)
        Groups(plan.namespace).remove()
        _remove_files(layout, [*traces, *_network_results(plan)])
    left = leftovers(plan, layout)
    if left:
        raise ClusterError(f"instance {plan.name} is not wholly gone:\n" + "\n".join(f"  {line}" for line in left))


def purge(layout: Layout) -> None:
    """Remove what `down` keeps: the image store. Never deletes through a mount; what is not there is no matter."""
    if layout.home.exists() and not mounts_below(layout.home):
        shutil.rmtree(layout.home)


def stop_parts(record: Record | None, names: tuple[str, ...], first: signal.Signals) -> None:
    """Signal all, then wait for each; a part that is not there is no matter."""
    processes = [process for name in names if record and (process := record.process(name))]
    for process in processes:
        process.send(first)
    for process in processes:
        process.stop(first)


def mounts_below(folder: Path) -> list[str]:
    """Mount points in a folder, innermost first."""
    prefix = f"{folder}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [point.encode().decode("unicode_escape") for point in points]
    return sorted((point for point in decoded if point.startswith(prefix)), key=len, reverse=True)


def unmount(folder: Path) -> None:
    """Unmount all below a folder; what is busy for five seconds is detached."""

    def done() -> bool:
        for point in mounts_below(folder):
            succeeds(["umount", point])
        return not mounts_below(folder)

    if not wait_until(done, 5.0):
        for point in mounts_below(folder):
            succeeds(["umount", "--lazy", point])


def leftovers(plan: Plan, layout: Layout) -> list[str]:
    """Everything of the instance that a `down` should have removed, a line each."""
    groups = Groups(plan.namespace)
    found = [f"process {pid} in its control groups" for pid in sorted(groups.pids())]
    found += [f"mount {point}" for point in mounts_below(layout.home)]
    found += [f"control group {folder}" for folder in groups.folders()]
    found += [f"network namespace {name}" for name in network.pod_namespaces(plan)]
    if network.exists(plan):
        found.append(f"network namespace {plan.namespace}")
    if succeeds(["ip", "link", "show", plan.veth]):
        found.append(f"interface {plan.veth}")
    found += [f"route {route}" for route in network.machine_routes() if route == plan.network]
    found += [f"iptables rule {rule}" for rule in _machine_rules(plan)]
    if layout.run.exists():
        found.append(f"folder {layout.run}")
    return found


def _machine_rules(plan: Plan) -> list[str]:
    """Rules of the machine's own tables that name the instance (it makes none: all are in its namespace)."""
    rules: list[str] = []
    for tool in ("iptables-save", "ip6tables-save"):
        with contextlib.suppress(ClusterError):
            rules += run([tool]).splitlines()
    return [rule for rule in rules if plan.namespace in rule or plan.network.removesuffix("0.0/16") in rule]


def _remove_containers(layout: Layout) -> None:
    ctr = ["ctr", "--address", str(layout.containerd_socket), "--namespace", "k8s.io"]
    for kind, remove in (("tasks", ["rm", "--force"]), ("containers", ["rm"])):
        with contextlib.suppress(ClusterError):  # what resists is killed with its control group
            if names := run([*ctr, kind, "ls", "--quiet"]).split():
                run([*ctr, kind, *remove, *names])


def _network_results(plan: Plan) -> list[Path]:
    """CNI results of the instance's pods, also of those whose bundles an interrupted `down` has removed."""
    containers = {path.name.removeprefix(f"{plan.namespace}-")[:64] for path in CNI_RESULTS.glob(f"{plan.namespace}-*")}
    return [path for container in containers for path in CNI_RESULTS.glob(f"*-{container}-*")]


def _traces(bundle: Path) -> list[Path]:
    """Files that a container leaves outside of the instance's folder: its shim's socket, its CNI results."""
    traces = list(CNI_RESULTS.glob(f"*-{bundle.name}-*"))
    with contextlib.suppress(FileNotFoundError):
        traces.append(Path((bundle / "address").read_text().strip().removeprefix("unix://")))
    return traces


def _remove_files(layout: Layout, traces: list[Path]) -> None:
    for path in (*traces, layout.kubeconfig, layout.record):
        path.unlink(missing_ok=True)
    for link in CONTAINER_LINKS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{layout.pod_logs}/"):
            link.unlink()
    if not mounts_below(layout.run):  # never delete through a mount
        shutil.rmtree(layout.run, ignore_errors=True)
