"""What comes with Headrace: packed traces and engine profiles, by name. Without numpy, for `--help`."""

from __future__ import annotations

from pathlib import Path

TRACES = Path(__file__).parent / "traces"
PROFILES = Path(__file__).parent / "profiles"


def traces() -> list[str]:
    """Names of the packed traces."""
    return sorted(path.stem for path in TRACES.glob("*.npz"))


def profiles() -> list[str]:
    """Names of the engine profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))
