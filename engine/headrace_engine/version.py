"""The version of this distribution."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """As installed; `unknown` when run from a source tree that is not installed."""
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "unknown"
