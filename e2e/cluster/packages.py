"""Debian packages that the cluster and the builds need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster import cache
from cluster.errors import ClusterError, require_root
from cluster.process import follow, succeeds
from cluster.progress import Step, step

NODE = ("etcd-server", "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "ipset", "socat")
BUILD = ("buildah", "mmdebstrap", "gpg", "ca-certificates")
BASICS = ("openssl", "iproute2", "util-linux", "mount")
TESTS = ("prometheus", "redis-server")
NEEDED = (*NODE, *BUILD, *BASICS, *TESTS)
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before a package starts its service
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive"}


def missing(needed: Sequence[str]) -> list[str]:
    """Packages of `needed` that are not installed, and pip where this Python has none."""
    wanted = list(needed)
    if not _has_pip():
        wanted.append("python3-pip")
    if not wanted:
        return []
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    told = subprocess.run(command, text=True, capture_output=True, check=False).stdout
    return absent(wanted, told)


def _has_pip() -> bool:
    return succeeds([sys.executable, "-m", "pip", "--version"])


def absent(wanted: list[str], told: str) -> list[str]:
    """Those of `wanted` that `package status` lines do not call installed."""
    installed = {line.split()[0] for line in told.splitlines() if line.split()[1:] == ["installed"]}
    return [package for package in wanted if package not in installed]


def ensure(needed: Sequence[str] = NEEDED) -> None:
    """Install what is missing, with apt."""
    if not needed and _has_pip():
        return
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        raise ClusterError("this is no Debian: use a Debian 12 machine, or set KUBECONFIG to a cluster of yours")
    if not missing(needed):
        return
    require_root("installing Debian packages")
    with cache.locked(cache.root() / "packages.lock", "packages"):
        if packages := missing(needed):
            with step("packages", f"installing {' '.join(packages)}", "1 min") as running, services_held():
                _apt(running, "update")
                _apt(running, "install", "--yes", "--no-install-recommends", *packages)


@contextmanager
def services_held() -> Iterator[None]:
    """Packages that are installed meanwhile do not start their services: only the programs are wanted."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _apt(running: Step, *arguments: str) -> None:
    def on_line(line: str) -> None:
        running.detail = line[:80]

    follow(["apt-get", "-q", *arguments], on_line, env={**os.environ, **ENVIRONMENT})
