"""One engine: continuous batching with chunked prefill, a KV pool, preemption and a prefix cache, as steps of time.

Steps in which nothing but decoding happens are taken together, up to the next end of a sequence: their times form an
arithmetic series. An arrival cuts such a run short at the end of the step that is under way. So a request costs a few
events, however many tokens it has.

Beside sequences that decode, prompts get as much of a step as lets it last `prefill_stretch` times what these alone
would take, and LEAST_PREFILL tokens in any case, as the engine's own scheduler gives them.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Protocol

from headrace.bench.prefix import PrefixCache
from headrace.bench.profile import Profile
from headrace.bench.request import Request

LEAST_PREFILL = 32  # prompt tokens of a step, however long it gets


class Watcher(Protocol):
    """Who is told what happens in a replica."""

    def first_token(self, request: Request, now: float) -> None:
        """The prompt is prefilled and the first token is out."""

    def finished(self, request: Request, replica: Replica, now: float) -> None:
        """All output tokens are out."""


class Replica:
    """One engine pod. `due` is the end of what it does now; infinite while idle."""

    __slots__ = (
        "_begun",
        "_cache",
        "_chunks",
        "_heap",
        "_profile",
        "_run",
        "_serial",
        "born",
        "draining",
        "due",
        "held",
        "pages",
        "preemptions",
        "prefill",
        "queued",
        "ready_at",
        "requests",
        "running",
        "serial",
        "slots",
        "steps",
        "version",
    )  # fmt: skip

    def __init__(self, serial: int, profile: Profile, born: float, slots: int, cached: bool):
        self._profile = profile
        self._begun = born
        self._run = 0  # decode steps in the run under way; 0 = a mixed step or idle
        self._chunks: list[tuple[Request, int]] = []
        self._heap: list[tuple[int, int, Request]] = []  # decoding, by the step at which each ends
        self._serial = 0
        self._cache = PrefixCache() if cached else None
        self.serial = serial
        self.born = born
        self.ready_at = math.inf
        self.slots = slots
        self.draining = False
        self.due = math.inf
        self.version = 0  # of `due`: scheduled ends of an older one are void
        self.held = 0  # KV tokens
        self.prefill: deque[Request] = deque()
        self.running = 0  # sequences that decode
        self.steps = 0  # taken
        self.preemptions = 0
        self.requests = self.pages = self.queued = 0  # what the gateway has here

    def submit(self, request: Request, now: float) -> None:
        """A request arrives."""
        request.place = self.serial
        if self._cache is not None and request.blocks is not None:
            request.cached = self._cache.lookup(request.blocks, request.prompt)
            request.context = request.cached
            request.left = request.prompt - request.cached
        self.prefill.append(request)
        if self.due == math.inf:
            self._plan(now)
        elif self._run > 1:
            self._cut(now)

    def remove(self, request: Request, now: float) -> None:
        """The client has left: the request is taken out as soon as the step under way is over."""
        for entry in self._heap:
            if entry[2] is request:
                if self._run > 1:
                    self._cut(now)
                self._drop(entry)
                return
        if request in self.prefill:
            self.prefill.remove(request)
            self.held -= request.context - request.cached
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not request]

    def _drop(self, entry: tuple[int, int, Request]) -> None:
        """A decoding sequence leaves before its end, with its KV."""
        self._heap.remove(entry)
        heapify(self._heap)
        request = entry[2]
        request.generated = max(1, request.output - (entry[0] - self.steps))
        self.held -= request.prompt - request.cached + request.generated - 1
        self.running -= 1

    def ends(self) -> list[float]:
        """The ends of the steps under way, to be asked just before `advance`. Each sequence that decodes gets a token
        at each of them."""
        return [self._begun + self._took(i) for i in range(1, self._run)] + [self.due]

    def all_requests(self) -> list[Request]:
        """Whatever is here."""
        return [entry[2] for entry in self._heap] + list(self.prefill)

    def advance(self, now: float, watcher: Watcher) -> None:
        """The end of what was under way has come."""
        if self._run:
            self.steps += self._run
            self.held += self._run * self.running
        else:
            self.steps += 1
            self.held += self.running
            for request, tokens in self._chunks:
                request.left -= tokens
                request.context += tokens
                self.held += tokens
                if request.left <= 0:
                    self._prefilled(request, now, watcher)
            self._chunks = []
        heap = self._heap
        while heap and heap[0][0] <= self.steps:
            self._finish(heappop(heap)[2], now, watcher)
        self._plan(now)

    def _prefilled(self, request: Request, now: float, watcher: Watcher) -> None:
        self.prefill.popleft()
        if self._cache is not None and request.blocks is not None:
            self._cache.insert(request.blocks, request.prompt)
            self._cache.shrink(self._profile.kv_tokens - self.held)
        request.generated += 1
        if request.first < 0:
            request.first = now
            watcher.first_token(request, now)
        self._serial += 1
        heappush(self._heap, (self.steps + request.output - request.generated, self._serial, request))
        self.running += 1

    def _finish(self, request: Request, now: float, watcher: Watcher) -> None:
        self.running -= 1
        self.held -= request.prompt - request.cached + request.output - 1
        watcher.finished(request, self, now)

    def _plan(self, now: float) -> None:
        """What is done next, from a step's end on."""
        self.version += 1
        self._begun = now
        if self.prefill and self._mixed(now):
            return
        if not self.running:
            self._run, self.due = 0, math.inf
            return
        profile, held, running = self._profile, self.held, self.running
        run = self._heap[0][0] - self.steps
        room = (profile.kv_tokens - held) // running
        if room < run:
            if room < 1:
                self._preempt()
                self._plan(now)
                return
            run = room
        self._run = run
        self.due = now + self._took(run)

    def _took(self, steps: int) -> float:
        """Seconds of so many decode steps from here."""
        profile, running = self._profile, self.running
        one = profile.step_seconds + profile.per_sequence_seconds * running + profile.per_kv_token_seconds * self.held
        return steps * one + profile.per_kv_token_seconds * running * steps * (steps - 1) / 2

    def _cut(self, now: float) -> None:
        """End the run at the end of the step that is under way."""
        profile = self._profile
        square = profile.per_kv_token_seconds * self.running / 2
        one = profile.step_seconds + profile.per_sequence_seconds * self.running
        linear = one + profile.per_kv_token_seconds * self.held - square
        passed = max(0.0, now - self._begun)
        root = 2 * passed / (linear + math.sqrt(linear * linear + 4 * square * passed))
        steps = max(1, math.ceil(root - 1e-9))
        if steps < self._run:
            self._run = steps
            self.version += 1
            self.due = max(now, self._begun + self._took(steps))

    def _mixed(self, now: float) -> bool:
        """Begin a step with prompt pieces in it; False where no prompt fits."""
        profile, running = self._profile, self.running
        budget = max(1, profile.max_batch_tokens - running)
        free = profile.kv_tokens - self.held - running
        took = profile.step_seconds + profile.per_sequence_seconds * running + profile.per_kv_token_seconds * self.held
        if running and profile.prefill_stretch > 0:
            depth = self.prefill[0].context
            budget = min(
                budget, max(LEAST_PREFILL, profile.prefill_within((profile.prefill_stretch - 1) * took, depth))
            )
        chunks = self._chunks
        for request in self.prefill:
            if budget <= 0 or (request.left > free and (running or chunks)):
                break
            tokens = min(budget, request.left)
            took += profile.per_prefill_token_seconds * tokens
            took += profile.per_prefill_pair_seconds * tokens * (2 * request.context + tokens)
            budget -= tokens
            free -= request.left
            chunks.append((request, tokens))
        if not chunks:
            return False
        self._run, self.due = 0, now + took
        return True

    def _preempt(self) -> None:
        """The last sequence that began gives its KV back and computes it again later."""
        entry = max(self._heap, key=lambda e: e[1])
        self._drop(entry)
        request = entry[2]
        request.left = request.prompt + request.generated
        request.cached = request.context = 0
        self.preemptions += 1
        self.prefill.append(request)
