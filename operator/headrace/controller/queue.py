"""A keyed work queue: adds of one key coalesce, and no key is worked on twice at one time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S = 0.25
LONGEST_RETRY_S = 300.0


class KeyedQueue(Generic[K]):
    """Of one event loop. A key added while it is worked on is worked on once more afterwards."""

    def __init__(self, first_retry_s: float = FIRST_RETRY_S, longest_retry_s: float = LONGEST_RETRY_S):
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._dirty: set[K] = set()  # to be worked on; those not busy are in _ready
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._first, self._longest = first_retry_s, longest_retry_s

    def __len__(self) -> int:
        """Keys that wait or are worked on, timers apart."""
        return len(self._dirty | self._busy)

    @property
    def idle(self) -> bool:
        """True where nothing waits, runs or is to be tried again."""
        return not (self._dirty or self._busy or self._timers)

    def add(self, key: K) -> None:
        """Work on `key` soon."""
        self._cancel_timer(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._ready.put_nowait(key)

    def nudge(self, key: K) -> None:
        """Work on `key` soon, but if it has just failed not before its pause is over."""
        if key not in self._timers:
            self.add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Work on `key` in so many seconds, or sooner if it is added meanwhile."""
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.add, key)

    def retry(self, key: K) -> float:
        """Work on `key` again after a pause that doubles with each failure; gives the pause in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(self._longest, self._first * 2.0 ** min(failures, 20)) * random.uniform(0.8, 1.0)
        if key not in self._dirty:
            self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """`key` succeeded: its next failure is a first one."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; `done` must follow."""
        key = await self._ready.get()
        self._dirty.discard(key)
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on `key` has ended."""
        self._busy.discard(key)
        if key in self._dirty:
            self._ready.put_nowait(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
