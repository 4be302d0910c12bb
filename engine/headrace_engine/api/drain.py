"""Leaving in order: not ready first, then late requests are refused, running ones finish or are ended with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_engine.api.client import CoreLink
from headrace_wire.reasons import Reason

_POLL_S = 0.02
_LAST_WORDS_S = 1.0  # for error events to reach their clients


class Drain:
    """Begun once, by SIGTERM."""

    def __init__(self, link: CoreLink, open_requests: Callable[[], int], grace_s: float):
        self._link = link
        self._open_requests = open_requests
        self._grace_s = grace_s
        self.begun = asyncio.Event()
        self.hurried = asyncio.Event()  # a second signal: do not wait

    def begin(self) -> None:
        """From now on nothing new is taken; called again, running requests are ended at once."""
        if self.begun.is_set():
            self.hurried.set()
        self.begun.set()

    async def finish(self) -> int:
        """Waits for the running requests. Returns how many were ended by the end of the grace period."""
        self._link.drain()
        await self._empty(self._grace_s)
        ended = self._open_requests()
        if ended:
            self._link.abort_all(Reason.DRAINING)
            await self._empty(_LAST_WORDS_S, hurry=False)
        return ended

    async def _empty(self, limit_s: float, *, hurry: bool = True) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while self._open_requests() and loop.time() < until and self._link.alive:
            if hurry and self.hurried.is_set():
                return
            await asyncio.sleep(_POLL_S)
