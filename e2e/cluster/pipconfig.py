"""This machine's settings of pip, for a build that must reach packages the same way; never part of an image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PASSED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


def render(listed: str, certificates: str) -> str:
    """A pip.conf out of what `pip config list` prints; the environment (`:env:`) wins over files."""
    settings: dict[str, str] = {"disable-pip-version-check": "1", "no-input": "1", "root-user-action": "ignore"}
    settings["cert"] = certificates
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = key.strip().rpartition(".")[2]
        if name in PASSED:
            settings[name] = value.strip().strip("'\"").replace("\\n", " ")
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in sorted(settings.items()))


def machine(certificates: str) -> str:
    """A pip.conf that reaches packages as this machine does."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, text=True, capture_output=True, check=False)
    return render(listed.stdout, certificates)


def write(path: Path, content: str) -> Path:
    """Write it so that only its owner can read it: an index's address may hold a password."""
    path.touch(mode=0o600)
    path.write_text(content)
    return path
