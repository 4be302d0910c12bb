"""Control groups: v1 and v2 as trees of files, and as the kernel has them where this machine allows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import cgroups
from cluster.cgroups import Groups, Hierarchy
from cluster.errors import ClusterError
from cluster.process import spawn, wait_until
from rig import bounded

Hierarchies = Callable[[], list[Hierarchy]]


class FakeUnified:
    """A v2 tree in a folder: a new group has the files that the kernel gives it, and the controllers lent to it."""

    def __init__(self, mount: Path, lends: str):
        self.mount, self.lends = mount, lends
        self._fill(mount, "cpuset cpu io memory pids")

    def _fill(self, folder: Path, controllers: str) -> None:
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.procs").write_text("")

    def mkdir(self, folder: Path) -> None:
        """What the kernel does on mkdir(2); `lends`: what its parent could be made to lend."""
        self._fill(folder, self.lends)


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], FakeUnified]:
    """A machine with v2 alone. A write to subtree_control of `+x` is kept as the kernel keeps it: `x` among others."""

    def make(lends: str) -> FakeUnified:
        tree = FakeUnified(tmp_path, lends)
        monkeypatch.setattr(cgroups, "hierarchies", lambda: [Hierarchy(tmp_path, frozenset(), unified=True)])
        mkdir, write = Path.mkdir, Path.write_text

        def made(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
            mkdir(self, mode, parents, exist_ok)
            if tmp_path in self.parents and not (self / "cgroup.procs").exists():
                tree.mkdir(self)

        def written(self: Path, data: str, *rest: str) -> int:
            if self.name != "cgroup.subtree_control" or not data.startswith("+"):
                return write(self, data, *rest)
            controller = data.removeprefix("+")
            if controller not in (self.parent / "cgroup.controllers").read_text().split():
                raise OSError(2, "no such controller here")
            if self.parent == tmp_path and controller not in lends.split():
                raise OSError(16, "processes are in this group")
            kept = {*self.read_text().split(), controller}
            return write(self, " ".join(sorted(kept)))

        monkeypatch.setattr(Path, "mkdir", made)
        monkeypatch.setattr(Path, "write_text", written)
        return tree

    return make


def test_v2_groups_get_every_controller_that_the_root_lends(unified: Callable[[str], FakeUnified]) -> None:
    tree = unified("cpuset cpu memory pids")
    groups = Groups("headrace-unit")
    groups.create()
    assert (tree.mount / "cgroup.subtree_control").read_text() == "cpu cpuset memory pids"
    assert (tree.mount / "headrace-unit/cgroup.subtree_control").read_text() == "cpu cpuset memory pids"
    assert groups.daemon_files() == [tree.mount / "headrace-unit/daemons/cgroup.procs"]
    assert [folder.name for folder in groups.folders()] == ["daemons", "headrace-unit"]
    groups.create()  # again: nothing to do, nothing fails


@pytest.mark.parametrize(("lends", "missing"), [("cpu pids", "memory"), ("", "cpu, memory, pids")])
def test_v2_root_that_keeps_controllers_is_a_sentence_with_the_cure(
    unified: Callable[[str], FakeUnified], lends: str, missing: str
) -> None:
    unified(lends)
    with pytest.raises(ClusterError, match=rf"cgroup v2: {missing} cannot be used below .*move all processes of "):
        Groups("headrace-unit").create()


def test_v2_beside_v1_needs_no_controllers(
    unified: Callable[[str], FakeUnified], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = unified("")
    v1 = tree.mount / "memory"
    v1.mkdir()
    both = [Hierarchy(v1, frozenset({"memory"}), unified=False), Hierarchy(tree.mount, frozenset(), unified=True)]
    monkeypatch.setattr(cgroups, "hierarchies", lambda: both)
    Groups("headrace-unit").create()
    assert (v1 / "headrace-unit/daemons").is_dir()
    assert (tree.mount / "headrace-unit/daemons").is_dir()


@pytest.mark.parametrize(
    ("kind", "stat", "expected"),
    [
        pytest.param("v1", "cache 900\nrss 400\n", 400, id="v1"),
        pytest.param("v2", "anon 500\nfile 900\n", 500, id="v2"),
        pytest.param("none", "", 0, id="not accounted"),
    ],
)
def test_memory_of_the_parts_is_anonymous_memory(
    kind: str, stat: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [Hierarchy(tmp_path, frozenset(), unified=kind == "v2")])
    if stat:
        (tmp_path / "headrace-unit/daemons").mkdir(parents=True)
        (tmp_path / "headrace-unit/daemons/memory.stat").write_text(stat)
    assert Groups("headrace-unit").daemon_memory() == expected


def real(unified: bool) -> list[Hierarchy]:
    return [found for found in cgroups.hierarchies() if found.unified is unified]


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")
@pytest.mark.parametrize("unified", [False, True], ids=["v1", "v2"])
def test_groups_of_the_kernel_hold_kill_and_vanish(
    unified: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = real(unified)
    if not found:
        pytest.skip(f"this machine has no cgroup {'v2' if unified else 'v1'}")
    beside = [] if len(found) > 1 else [Hierarchy(tmp_path, frozenset(), unified=False)]  # so that controllers may lack
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [*found, *beside])
    groups = Groups(f"headrace-unit-{os.getpid()}")
    daemon = spawn("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    try:
        groups.create()
        groups.create()
        for file in groups.daemon_files():
            file.write_text(str(daemon.pid))
        assert groups.pids() == {daemon.pid}
        weighed = [f / name for f in groups.folders() for name in cgroups.SHARES if (f / name).exists()]
        for file in (file for file in weighed if file.parent.name == groups.name):
            assert int(file.read_text()) == cgroups.SHARES[file.name] * (os.cpu_count() or 1)
        assert groups.kill()
        assert wait_until(lambda: not daemon.alive, 10)
    finally:
        daemon.stop()
        for folder in tmp_path.glob("headrace-unit-*/**/cgroup.procs"):
            folder.unlink()
        assert groups.remove()
    assert not any(True for _ in groups.folders())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"v1/load/cpu.cfs_period_us", "v1/load/cpu.cfs_quota_us"}, {"100000", "25000"}, id="v1"),
        pytest.param({"v2/cgroup.controllers", "v2/load/cpu.max"}, {"25000 100000"}, id="v2"),
    ],
)
def test_share_of_the_cpu_is_written_as_the_kernel_reads_it(
    files: set[str], expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "V1", tmp_path / "v1")
    monkeypatch.setattr(bounded, "V2", tmp_path / "v2")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    seen: set[str] = set()
    with bounded.cpu_group("load", 0.25) as group:
        assert group is not None
        for file in list(group.iterdir()):
            seen.add(file.read_text())
            file.unlink()  # the kernel's files do not keep a group from being removed
    assert seen == expected
    assert not group.exists()


def test_machine_that_lends_no_cpu_leaves_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "V2", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("hugetlb")
    with bounded.cpu_group("load", 0.25) as group:
        assert group is None
    assert not (tmp_path / "load").exists()
