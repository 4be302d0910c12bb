"""What a person sees while something long runs: one line at the start, one at the end, one every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT = 15.0  # seconds between lines of a step that has nothing else to say

_print_lock = threading.Lock()


def say(topic: str, text: str) -> None:
    """One whole line on stderr; safe from several threads."""
    with _print_lock:
        sys.stderr.write(f"[{topic}] {text}\n")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """`4.2 s` below ten seconds, `42 s` below two minutes, `3 min 05 s` above."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


class Step:
    """A running step; `detail` is what the next heartbeat line adds."""

    def __init__(self, topic: str, detail: str = "") -> None:
        self.topic = topic
        self.detail = detail
        self.started = time.monotonic()
        self._stopped = threading.Event()

    def elapsed(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self.started

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            tail = f", {self.detail}" if self.detail else ""
            say(self.topic, f"... {duration(self.elapsed())}{tail}")

    def __enter__(self) -> Step:
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()


@contextmanager
def step(topic: str, what: str, usual: str = "") -> Iterator[Step]:
    """Announce `what` (and how long it usually takes), beat while it runs, say when it is done."""
    say(topic, f"{what} (usually {usual})" if usual else what)
    with Step(topic) as running:
        yield running
    say(topic, f"done in {duration(running.elapsed())}")
