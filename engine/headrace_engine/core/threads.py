"""How many threads the runner uses, and how they wait for each other. No torch: this comes before it is loaded."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path


def allowed_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: its affinity, cut by the control group's quota (rounded up)."""
    cpus = len(os.sched_getaffinity(0))
    quota = _quota(root)
    return cpus if quota is None else max(1, min(cpus, quota))


def count(configured: int) -> int:
    """Threads of the runner: as configured, 0 meaning one per CPU allowed."""
    return configured or allowed_cpus()


def set_policy(environment: MutableMapping[str, str], threads: int, cpus: int) -> str:
    """How OpenMP threads wait; it is read once, when torch is loaded. Returns the policy in words.

    Threads that spin while they wait slow two engines on the same CPUs down tenfold; threads that sleep at once cost
    some microseconds at every operation. A short spin is for an engine that has all CPUs for itself.
    """
    if "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment:
        return "set by the environment"
    if threads > 1 and threads == cpus:
        environment["GOMP_SPINCOUNT"] = "20000"
        return "short spin"
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return "passive"


def _quota(root: Path) -> int | None:
    """CPUs of the control group's quota, v2 then v1; None: no limit."""
    base = root / "sys/fs/cgroup"
    try:
        limit, period = (base / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (base / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (base / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not limit.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" or -1
    return -(-int(limit) // int(period))
