"""A clock that tests move by hand."""

from __future__ import annotations


class Clock:
    """Call it for the time in seconds; it stands still until advanced."""

    def __init__(self, now: float = 1_000.0):
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Move forward; returns the new time."""
        self.now += seconds
        return self.now
