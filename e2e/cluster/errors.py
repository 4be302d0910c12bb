"""The one error this package shows to a person: what is wrong and how to cure it, in a sentence."""

from __future__ import annotations

import os
import shutil


class ClusterError(Exception):
    """A condition the caller can cure; the message says how."""


def require_tools(*tools: str) -> None:
    """Raise ClusterError unless every tool is on PATH."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise ClusterError(
            f"{', '.join(missing)} not found on this machine: run `PYTHONPATH=e2e python3 -m cluster setup` first"
        )


def require_root(purpose: str) -> None:
    """Raise ClusterError unless this process is root."""
    if os.geteuid() != 0:
        raise ClusterError(f"{purpose} needs root (namespaces, mounts, cgroups): run it with sudo")
