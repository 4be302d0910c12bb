"""What comes with Headrace: packed traces and engine profiles, by name. Without numpy, for `--help`."""

from __future__ import annotations

import zipfile
from pathlib import Path

TRACES = Path(__file__).parent / "traces"
PROFILES = Path(__file__).parent / "profiles"


def traces() -> list[str]:
    """Names of the packed traces."""
    return sorted(path.stem for path in TRACES.glob("*.npz"))


def loads() -> list[str]:
    """Names of the packed traces that say when requests arrive, which not all do."""
    return [name for name in traces() if {"arrival.npy", "rate.npy"} & set(_arrays(TRACES / f"{name}.npz"))]


def _arrays(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as file:
        return file.namelist()


def profiles() -> list[str]:
    """Names of the engine profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))
