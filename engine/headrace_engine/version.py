"""The version of this distribution."""

from __future__ import annotations

VERSION = "0.1.0"  # as in pyproject.toml: images and checkouts run from the source tree, which nobody installed


def version() -> str:
    """What the engine says of itself, however it was installed."""
    return VERSION
