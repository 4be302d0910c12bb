"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.engine.peers.servers import ROOT

MATRIX_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def describe() -> dict[str, str]:
    """Name and value, for the head of the report."""
    info = Path("/proc/cpuinfo").read_text()
    lines = dict(line.split(":", 1) for line in reversed(info.splitlines()) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = set(fields.get("flags", "").split())
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "processor": fields.get("model name", platform.machine()),
        "family/model": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "matrix instructions": " ".join(flag for flag in MATRIX_FLAGS if flag in flags) or "none known",
        "CPUs allowed": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory.split()[1]) >> 20} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "torch of Headrace": _version("torch"),
        "Headrace": _commit(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, and whether the engine differs from it."""
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return "unknown"
    changed = subprocess.run(["git", "status", "--short", "engine"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() + (" with local changes" if changed.stdout.strip() else "")
