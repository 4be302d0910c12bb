"""Retry-After: when a refused caller should come back. Whole seconds, rounded up, spread by request."""

from __future__ import annotations

import hashlib
import math
from collections import deque

MIN_S = 1
MAX_S = 300
SPREAD_PERCENT = 20  # callers that were refused together do not return together
COLD_START_S = 30.0  # assumed until one has been measured


class DrainRate:
    """Dispatches per second over the last half minute, at most a thousand of them."""

    def __init__(self, window_s: float = 30.0, most: int = 1000):
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=most)

    def record(self, now: float) -> None:
        """A request left the queue for an endpoint."""
        self._times.append(now)

    def rate(self, now: float) -> float:
        """Per second; 0 = none lately."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if not self._times:
            return 0.0
        span = now - self._times[0] if len(self._times) == self._times.maxlen else self._window_s
        return len(self._times) / max(span, 1.0)


def retry_after(ahead: int, rate: float, request: str) -> int:
    """Seconds until `ahead` waiting requests have left at `rate` per second; the most where nothing moves."""
    if ahead <= 0:
        return MIN_S
    return _spread(ahead / rate if rate > 0 else MAX_S, request)


def cold_retry_after(cold_start_s: float | None, waited_s: float, request: str) -> int:
    """Seconds that are left of a cold start which began `waited_s` ago."""
    expected = COLD_START_S if cold_start_s is None else cold_start_s
    return _spread(expected - max(0.0, waited_s), request)


def header(seconds: float) -> int:
    """A wait as a Retry-After header's value."""
    return max(MIN_S, math.ceil(seconds))


def _spread(seconds: float, request: str) -> int:
    if not seconds < MAX_S:
        seconds = MAX_S
    fraction = int.from_bytes(hashlib.sha256(request.encode()).digest()[:4], "big") / 2**32
    return min(MAX_S, max(MIN_S, math.ceil(seconds * (1 + fraction * SPREAD_PERCENT / 100))))
