"""What a person sees while the benchmark runs, and how long it will take."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """One line on stderr, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def minutes(seconds: float) -> str:
    """`40 s` below two minutes, else `12 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
