"""The control groups of an instance: one group of its name in every hierarchy (cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.process import start_time, wait_until

NEEDED = ("cpu", "memory", "pids")  # without them kubelet does not start on v2
SHARES = {"cpu.shares": 1024, "cpu.weight": 100}  # of v1 and v2: what a group gets that nobody weighs
CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")  # a new v1 cpuset is empty and takes no process until they are set


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy."""

    mount: Path
    controllers: frozenset[str]  # of v1; empty for v2
    unified: bool


def parse_mounts(mounts: str) -> list[Hierarchy]:
    """The cgroup hierarchies in the text of /proc/mounts."""
    found = []
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.append(Hierarchy(Path(where), frozenset(), unified=True))
        elif kind == "cgroup":
            found.append(Hierarchy(Path(where), frozenset(options.split(",")), unified=False))
    return found


def hierarchies() -> list[Hierarchy]:
    """Those of this machine; ClusterError if there is none to limit pods with."""
    found = parse_mounts(Path("/proc/mounts").read_text())
    if not found:
        raise ClusterError("no cgroup file system is mounted: mount cgroup v2 at /sys/fs/cgroup first")
    return found


@dataclass(frozen=True)
class Groups:
    """The groups `/<name>` of every hierarchy."""

    name: str

    def create(self) -> None:
        """Make the groups, ready for kubelet to make its own below them, and `daemons` for the parts.

        Raises ClusterError where the machine has v2 alone and its root keeps a controller that pods need.
        """
        found = hierarchies()
        for hierarchy in found:
            group = hierarchy.mount / self.name
            if hierarchy.unified:
                _delegate(hierarchy.mount)
            for folder in (group, group / "daemons"):
                folder.mkdir(exist_ok=True)
                if "cpuset" in hierarchy.controllers:
                    _inherit_cpuset(folder)
            _weigh(group)
            if hierarchy.unified:
                _delegate(group)
                if len(found) == 1:
                    _require_controllers(hierarchy.mount, group)

    def daemon_files(self) -> list[Path]:
        """Files to write a pid to, so that it counts as one of the parts."""
        return [hierarchy.mount / self.name / "daemons" / "cgroup.procs" for hierarchy in hierarchies()]

    def folders(self) -> Iterator[Path]:
        """Every existing group of the instance, children before parents."""
        for hierarchy in hierarchies():
            for folder, _, _ in os.walk(hierarchy.mount / self.name, topdown=False):
                yield Path(folder)

    def pids(self) -> set[int]:
        """Live processes in any of the groups."""
        found: set[int] = set()
        for folder in self.folders():
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return {pid for pid in found if start_time(pid) is not None}

    def daemon_memory(self) -> int:
        """Bytes of anonymous memory of the parts (page cache left out); 0 if not accounted."""
        for hierarchy in hierarchies():
            file = hierarchy.mount / self.name / "daemons" / "memory.stat"
            if file.exists():
                stat = dict(line.split() for line in file.read_text().splitlines())
                return int(stat.get("rss", stat.get("anon", "0")))
        return 0

    def kill(self, patience: float = 10.0) -> bool:
        """SIGKILL everything in the groups; False if something is left after `patience` seconds."""

        def none_left() -> bool:
            pids = self.pids()
            kill_all(pids)
            return not pids

        return wait_until(none_left, patience)

    def remove(self, patience: float = 5.0) -> bool:
        """Remove the groups; False if one is still there after `patience` seconds."""

        def gone() -> bool:
            for folder in list(self.folders()):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            return not any(True for _ in self.folders())

        return wait_until(gone, patience)


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each; those already gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _delegate(folder: Path) -> None:
    """Let children of a v2 group use every controller that it has itself."""
    controllers = folder / "cgroup.controllers"
    if controllers.exists():
        for controller in controllers.read_text().split():
            with contextlib.suppress(OSError):  # a controller the kernel keeps to itself
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _require_controllers(mount: Path, group: Path) -> None:
    """v2 lends a controller to children only of a group without processes of its own (the machine's root apart)."""
    lent = (group / "cgroup.subtree_control").read_text().split()
    if missing := [controller for controller in NEEDED if controller not in lent]:
        raise ClusterError(
            f"cgroup v2: {', '.join(missing)} cannot be used below {mount}: in a container, move all processes of "
            f"{mount}/cgroup.procs into a group of their own, such as {mount}/init, and start again"
        )


def _weigh(group: Path) -> None:
    """A node is worth as many of the machine's processes as it has CPUs, where all of them are busy."""
    count = os.cpu_count() or 1
    for name, one in SHARES.items():
        if (group / name).exists():
            (group / name).write_text(str(one * count))


def _inherit_cpuset(folder: Path) -> None:
    for name in CPUSET_FILES:
        if not (folder / name).read_text().strip():
            (folder / name).write_text((folder.parent / name).read_text())
