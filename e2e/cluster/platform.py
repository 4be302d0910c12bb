"""What this machine is, in the words of images."""

from __future__ import annotations

import os

from cluster.errors import ClusterError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """`amd64` or `arm64`."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise ClusterError(f"no images for {machine} machines: use one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]
