"""Run a program with a bounded share of the CPU, so that a load generator cannot starve what it measures."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 100_000
V1 = Path("/sys/fs/cgroup/cpu")
V2 = Path("/sys/fs/cgroup")


@contextmanager
def cpu_group(name: str, cpus: float) -> Iterator[Path | None]:
    """A cgroup with a quota of `cpus` cores, removed at the end; None where the machine does not allow one."""
    quota = int(cpus * PERIOD_US)
    if (V2 / "cgroup.controllers").exists():
        group, limits = V2 / name, {"cpu.max": f"{quota} {PERIOD_US}"}
    else:
        group, limits = V1 / name, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    try:
        group.mkdir(exist_ok=True)
        for file, value in limits.items():
            with (group / file).open("r+") as control:  # never creates one
                control.write(value)
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def start_in(group: Path | None, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command inside the group."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=enter
    )
