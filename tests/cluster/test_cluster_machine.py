"""Reading what the machine is and has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cluster import binaries, cgroups, cli, context, network, packages, prepare, teardown, toolchain
from cluster.addresses import choose
from cluster.cgroups import Hierarchy
from cluster.errors import ClusterError, require_tools
from cluster.process import Process, run, spawn, start_time, wait_until
from cluster.progress import duration

V1 = "cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\nproc /proc proc rw 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        pytest.param(V1, [(Path("/sys/fs/cgroup/cpuset"), False)], id="v1"),
        pytest.param(V2, [(Path("/sys/fs/cgroup"), True)], id="v2"),
        pytest.param("proc /proc proc rw 0 0\n", [], id="none"),
    ],
)
def test_cgroup_hierarchies(mounts: str, expected: list[tuple[Path, bool]]) -> None:
    found: list[Hierarchy] = cgroups.parse_mounts(mounts)
    assert [(hierarchy.mount, hierarchy.unified) for hierarchy in found] == expected


@pytest.mark.parametrize(
    ("text", "version"), [("go1.26.8", (1, 26)), ("go1.19", (1, 19)), ("devel", (0, 0)), ("", (0, 0))]
)
def test_go_version(text: str, version: tuple[int, int]) -> None:
    assert toolchain.parse_version(text) == version


def test_go_is_new_enough_for_every_pinned_module() -> None:
    needed = [
        toolchain.parse_version(f"go{line.split()[1]}")
        for program in binaries.PROGRAMS
        for line in (program.source / "go.mod").read_text().splitlines()
        if line.startswith("go ")
    ]
    assert len(needed) == len(binaries.PROGRAMS)
    assert max(needed) <= toolchain.MINIMUM


def test_reported_kubernetes_version_is_the_pinned_one() -> None:
    pins = (binaries.KUBE.source / "go.mod").read_text()
    assert f"k8s.io/kubernetes {binaries.KUBERNETES_VERSION}" in pins


def test_binary_key_changes_with_compiler_and_flags() -> None:
    keys = {binaries.key(program, go) for program in binaries.PROGRAMS for go in ("go1.26.0", "go1.26.8")}
    assert len(keys) == 2 * len(binaries.PROGRAMS)


def test_absent_packages() -> None:
    told = "etcd-server installed\nsocat config-files\n"
    assert packages.absent(["etcd-server", "socat", "runc"], told) == ["socat", "runc"]


def test_missing_tool_is_a_sentence_with_the_cure() -> None:
    with pytest.raises(ClusterError, match=r"no-such-tool not found .* setup"):
        require_tools("sh", "no-such-tool")


def test_failed_command_tells_its_last_words() -> None:
    with pytest.raises(ClusterError, match="it broke"):
        run(["sh", "-c", "echo it broke >&2; exit 3"])


def test_lanes_go_on_when_one_fails() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ClusterError("no compiler")

    with pytest.raises(ClusterError, match="no compiler"):
        prepare.side_by_side([[fail, lambda: done.append("after")], [lambda: done.append("beside")]])
    assert done == ["beside"]


def test_daemon_is_stopped_and_reaped(tmp_path: Path) -> None:
    daemon = spawn("sleeper", ["sleep", "60"], tmp_path / "log")
    assert start_time(daemon.pid) == daemon.started
    daemon.stop()
    assert start_time(daemon.pid) is None


def test_daemon_that_ignores_the_first_signal_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    daemon = spawn("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 60; done"], log)
    try:
        assert _eventually_contains(log, "ready")
    finally:
        daemon.stop(signal.SIGTERM, patience=0.5)
    assert not daemon.alive


def _eventually_contains(file: Path, text: str) -> bool:
    return wait_until(lambda: file.exists() and text in file.read_text(), 10)


def test_reused_pid_is_not_taken_for_the_daemon() -> None:
    assert not Process("other", os.getpid(), "0").alive


def test_unknown_part_of_setup_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["setup", "--only", "binaries,torch"]) == 1
    assert "torch" in capsys.readouterr().err


def test_instance_that_is_down_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert cli.main(["load", "--name", "nothere", "headrace/x:1"]) == 1
    assert "is down: run `python3 -m cluster up --name nothere`" in capsys.readouterr().err


def test_mounts_are_listed_innermost_first() -> None:
    points = teardown.mounts_below(Path("/sys"))
    assert points == sorted(points, key=len, reverse=True)


def test_veth_pair_goes_before_the_namespace_that_would_take_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the namespace it might vanish between the question whether it is there and its removal."""
    for name in ("cni-1", "headrace-unit"):
        (tmp_path / name).touch()
    ran: list[str] = []
    monkeypatch.setattr(network, "NAMESPACES", tmp_path)
    monkeypatch.setattr(network, "succeeds", lambda command: True)
    monkeypatch.setattr(network, "run", lambda command: ran.append(" ".join(command)) or "")
    network.remove(choose("unit", []), ["cni-1", "cni-gone"])
    assert ran == ["ip link del hr-unit", "ip netns del cni-1", "ip netns del headrace-unit"]


def test_network_results_of_an_instance_are_found_without_its_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = "a" * 64, "b" * 64
    for name in (f"headrace-test-{ours}-eth0", f"cni-loopback-{ours}-lo", f"headrace-test2-{theirs}-eth0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(teardown, "CNI_RESULTS", tmp_path)
    found = {path.name for path in teardown._network_results(choose("test", []))}
    assert found == {f"headrace-test-{ours}-eth0", f"cni-loopback-{ours}-lo"}


@pytest.mark.parametrize(("seconds", "text"), [(4.23, "4.2 s"), (42.4, "42 s"), (119, "119 s"), (185, "3 min 05 s")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("recipe", context.RECIPES, ids=lambda recipe: recipe.name)
def test_dockerfile_runs_as_nobody_and_names_its_base_by_argument(recipe: context.Recipe) -> None:
    lines = (context.ROOT / recipe.dockerfile).read_text().splitlines()
    assert "FROM ${BASE}" in lines
    assert "USER 65532:65532" in lines
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and not line.endswith("/build/")]
    assert tuple(copied) == tuple(sorted(recipe.folders, key=copied.index))
