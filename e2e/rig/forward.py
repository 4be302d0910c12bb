"""`kubectl port-forward` that lasts: it ends with the pod that it leads to, and is then started anew."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

AGAIN_S = 0.3  # seconds between the end of one and the start of the next


class Forward:
    """Keeps one command running while the context is open. `words`: the last that it said on stderr when it ended."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._command, self._environment = tuple(command), dict(environment)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.words = ""

    def __enter__(self) -> Forward:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closing.set()
            if self._process is not None:
                self._process.terminate()
        self._thread.join(10)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()

    def _keep(self) -> None:
        while True:
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            self.words = self._process.communicate()[1].strip()[-500:]
            self._closing.wait(AGAIN_S)


def answers(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number
