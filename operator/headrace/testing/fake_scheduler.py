"""What a FakeEngine simulates: slots, pages, a queue in priority order, prefill and decode at given rates."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from headrace_wire.keys import block_keys, chain_root
from headrace_wire.protocol import PAGE_TOKENS, Held
from headrace_wire.reasons import Reason, RequestError

CACHE_ROOT = "fa" * 32


def pages_of(tokens: int) -> int:
    """Pages that this many tokens occupy."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True)
class Speed:
    """How fast the fake computes; infinity costs no time."""

    tokens_per_s: float = 50.0  # of each request
    prefill_tokens_per_s: float = 20_000.0  # over all requests, one prompt after the other


@dataclass(eq=False)
class Sequence:
    """One request in the fake: prompt and answer are token ids."""

    prompt: list[int]
    answer: list[int]
    limit: int  # output tokens
    holder: str = ""
    priority: int = 0
    salt: bytes = b""
    left_s: float | None = None  # ended when it has waited longer
    arrived: float = 0.0  # loop time
    prefilled: bool = False
    cached: int = 0  # prompt tokens
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pages(self) -> int:
        """Pages reserved while it runs: the fake reserves the whole length at once."""
        return pages_of(len(self.prompt) + self.limit)


class Scheduler:
    """Runs sequences. Every way out of `tokens` gives slot and pages back."""

    def __init__(self, max_sequences: int, total_pages: int, speed: Speed):
        self.max_sequences = max_sequences
        self.total = total_pages
        self.speed = speed
        self.running: set[Sequence] = set()
        self.waiting: list[tuple[int, int, Sequence]] = []  # heap: higher priority, then arrival
        self._order = 0
        self._prefill = asyncio.Lock()
        self._cache: dict[bytes, None] = {}  # block keys, oldest use first

    @property
    def used(self) -> int:
        """Pages of running sequences."""
        return sum(sequence.pages for sequence in self.running)

    @property
    def evictable(self) -> int:
        """Cached pages that no running sequence needs."""
        return min(len(self._cache), self.total - self.used)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens not yet prefilled."""
        running = sum(len(s.prompt) - s.cached for s in self.running if not s.prefilled)
        return running + sum(len(s.prompt) for _, _, s in self.waiting)

    def oldest_waiting_s(self, now: float) -> float | None:
        """Seconds that the oldest waiting request has waited."""
        return max((now - s.arrived for _, _, s in self.waiting), default=None)

    def holders(self) -> dict[str, Held]:
        """What each gateway holds."""
        held: dict[str, list[int]] = {}
        for sequence in [*self.running, *(s for _, _, s in self.waiting)]:
            row = held.setdefault(sequence.holder, [0, 0, 0])
            row[0] += 1
            row[1] += sequence.pages if sequence in self.running else 0
            row[2] += 0 if sequence.prefilled else len(sequence.prompt) - sequence.cached
        return {name: Held(requests=r, pages=p, queued_tokens=q) for name, (r, p, q) in held.items()}

    async def tokens(self, sequence: Sequence) -> AsyncGenerator[int, None]:
        """The tokens of the answer in time. Raises RequestError DEADLINE_EXCEEDED when it waited too long."""
        loop = asyncio.get_running_loop()
        sequence.arrived = loop.time()
        self._order += 1
        heapq.heappush(self.waiting, (-sequence.priority, self._order, sequence))
        try:
            self._admit()
            await self._slot(sequence)
            await self._prefilled(sequence)
            start = loop.time()
            for number, token in enumerate(sequence.answer[: sequence.limit], start=1):
                await asyncio.sleep(max(0.0, start + number / self.speed.tokens_per_s - loop.time()))
                yield token
        finally:
            self.running.discard(sequence)
            self.waiting = [item for item in self.waiting if item[2] is not sequence]
            heapq.heapify(self.waiting)
            self._admit()

    async def _slot(self, sequence: Sequence) -> None:
        try:
            async with asyncio.timeout(sequence.left_s):  # wait_for would swallow a cancel that meets a free slot
                await sequence.started.wait()
        except TimeoutError as error:
            raise RequestError(Reason.DEADLINE_EXCEEDED, "the request waited longer than its deadline") from error

    async def _prefilled(self, sequence: Sequence) -> None:
        async with self._prefill:
            data = b"".join(token.to_bytes(4, "little") for token in sequence.prompt)
            keys = block_keys(chain_root(CACHE_ROOT, sequence.salt), data)
            hits = next((i for i, key in enumerate(keys) if key not in self._cache), len(keys))
            sequence.cached = min(hits, (len(sequence.prompt) - 1) // PAGE_TOKENS) * PAGE_TOKENS
            await asyncio.sleep((len(sequence.prompt) - sequence.cached) / self.speed.prefill_tokens_per_s)
            sequence.prefilled = True
            for key in keys:
                self._cache.pop(key, None)
                self._cache[key] = None
            while len(self._cache) > self.total:
                del self._cache[next(iter(self._cache))]

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting[0][2]
            if self.used + sequence.pages > self.total:
                return
            heapq.heappop(self.waiting)
            self.running.add(sequence)
            sequence.started.set()
