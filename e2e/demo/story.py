"""How the demo speaks: numbered steps, commands as a user would type them, results."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Story:
    """Prints the demo's steps to stdout."""

    def __init__(self, total: int):
        self.total = total
        self.number = 0
        self.began = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered step, with its time at the end."""
        self.number += 1
        began = time.monotonic()
        self.line(f"\n== {self.number}/{self.total}  {title}")
        yield
        self.line(f"   ({time.monotonic() - began:.0f} s)")

    def line(self, text: str = "") -> None:
        """A line of text."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def piece(self, text: str) -> None:
        """A piece of streamed text."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def command(self, command: str) -> None:
        """A command, as a user would type it."""
        self.line(f"   $ {command}")

    def result(self, text: str) -> None:
        """What a command printed, indented."""
        for row in text.rstrip().splitlines():
            self.line(f"     {row}")
