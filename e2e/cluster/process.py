"""Commands that end and daemons that stay."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

POLL = 0.05  # seconds between two looks at a condition


def run(argv: Sequence[str | Path], *, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run to the end and return stdout; ClusterError with the end of its output if it fails."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(command, input=stdin, env=env, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} not found: run `PYTHONPATH=e2e python3 -m cluster setup` first") from error
    if done.returncode != 0:
        raise ClusterError(
            f"`{' '.join(command[:6])}` failed ({done.returncode}): {tail_of(done.stderr or done.stdout)}"
        )
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether the command exits 0; its output is dropped."""
    return subprocess.run([str(part) for part in argv], capture_output=True, check=False).returncode == 0


def follow(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run to the end, handing every line of stdout and stderr to `on_line` as it comes."""
    command = [str(part) for part in argv]
    last: deque[str] = deque(maxlen=25)
    with subprocess.Popen(
        command, env=env, cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        if child.stdout is None:
            raise ClusterError(f"{command[0]}: no output pipe")
        for line in child.stdout:
            last.append(line.rstrip())
            on_line(line.rstrip())
    if child.returncode != 0:
        raise ClusterError(f"`{' '.join(command[:6])}` failed ({child.returncode}):\n" + "\n".join(last))


def tail_of(text: str, lines: int = 12) -> str:
    """The last non-empty lines of `text`."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def tail_of_file(path: Path, lines: int = 15) -> str:
    """The last lines of a log, at most 64 KiB of it; empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - 65536))
        return tail_of(handle.read().decode(errors="replace"), lines)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until `condition()` holds; False once `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


def start_time(pid: int) -> str | None:
    """The kernel's start tick of a live process (so that a reused pid is told apart); None if gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class Process:
    """A process this package started, identified so that a reused pid is never signalled."""

    name: str
    pid: int
    started: str  # kernel start tick

    @property
    def alive(self) -> bool:
        """Whether it still runs; reaps it if it was our child and has ended."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal if it still runs."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, first: signal.Signals = signal.SIGTERM, patience: float = 5.0) -> None:
        """Send `first`, then SIGKILL after `patience` seconds; returns when it is gone."""
        for number in (first, signal.SIGKILL):
            if not self.alive:
                return
            self.send(number)
            if wait_until(lambda: not self.alive, patience):
                return
        raise ClusterError(f"{self.name} (pid {self.pid}) does not end, not even by SIGKILL")


def spawn(name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a daemon in a session of its own, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    started = start_time(child.pid) or ""
    child.returncode = 0  # `Process` reaps it; keeps Popen from warning about a child it thinks unfinished
    return Process(name, child.pid, started)
