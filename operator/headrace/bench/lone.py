"""One engine without a gateway: every token of every request of a trace, at its time. To be set beside a real replay.

A request reaches the engine `request_seconds` and `request_token_seconds` a prompt token after it was sent (the
profile's constants: HTTP, tokenising, the way back). Beyond `slots` requests wait in order of arrival. Steps take what
the profile's formula gives, times a draw from its `scatter` where it has any.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from headrace.bench.profile import Profile
from headrace.bench.replica import Replica
from headrace.bench.request import Request
from headrace.bench.trace import Floats, Trace


@dataclass
class Tokens:
    """What clients see."""

    ttft: Floats  # seconds, by request
    gaps: Floats  # seconds between tokens of one request, of all requests
    busy_s: float  # in which steps were under way
    end_s: float  # of the last token
    steps: int


@dataclass
class _Watcher:
    """Notes which of the engine's steps gave a request its first and its last token."""

    ends: list[float] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    left: int = 0  # requests that ended

    def first_token(self, request: Request, now: float) -> None:
        self.first[request.index] = len(self.ends) - 1

    def finished(self, request: Request, replica: Replica, now: float) -> None:
        self.last[request.index] = len(self.ends) - 1
        self.left += 1


class _Scattered(Replica):
    """Takes steps one by one, each as much longer or shorter as the profile's scatter says."""

    __slots__ = ("_random", "_ratios")

    def __init__(self, profile: Profile, slots: int, cached: bool, seed: int):
        super().__init__(1, profile, 0.0, slots, cached)
        self._ratios = profile.scatter
        self._random = random.Random(seed)

    def _plan(self, now: float) -> None:
        super()._plan(now)
        if self.due == math.inf:
            return
        took = self.due - now
        if self._run > 1:
            self._run, took = 1, self._took(1)
        self.due = now + took * self._random.choice(self._ratios)


def serve(trace: Trace, profile: Profile, slots: int, seed: int = 1) -> Tokens:
    """Raises ValueError if the KV pool is too small for what runs together: this is not simulated to the token."""
    late = profile.request_seconds + profile.request_token_seconds * trace.prompt
    order = np.argsort(trace.arrival_s + late, kind="stable").tolist()
    due = (trace.arrival_s + late).tolist()
    cached, seen, queue = trace.blocks is not None, _Watcher(), deque[int]()
    replica = (
        Replica(1, profile, 0.0, slots, cached) if not profile.scatter else _Scattered(profile, slots, cached, seed)
    )
    busy = now = 0.0
    inside = at = 0
    while seen.left < len(trace):
        upcoming = due[order[at]] if at < len(order) else math.inf
        if replica.due <= upcoming:
            began, now, ended = now, replica.due, seen.left
            seen.ends.extend(replica.ends())
            replica.advance(now, seen)
            inside -= seen.left - ended
            busy += now - began
        else:
            busy += upcoming - now if inside else 0.0
            now = upcoming
            queue.append(order[at])
            at += 1
        while queue and inside < slots:
            _submit(replica, trace, queue.popleft(), now)
            inside += 1
    if replica.preemptions:
        raise ValueError(f"the pool of {profile.kv_tokens} tokens is too small: {replica.preemptions} preemptions")
    return _tokens(trace, seen, busy, replica.steps)


def _submit(replica: Replica, trace: Trace, index: int, now: float) -> None:
    request = Request(index, float(trace.arrival_s[index]), int(trace.prompt[index]), int(trace.output[index]), 0)
    if trace.blocks is not None:
        request.blocks = trace.blocks.of(index)
    replica.submit(request, now)


def _tokens(trace: Trace, seen: _Watcher, busy: float, steps: int) -> Tokens:
    ends = np.array(seen.ends)
    count = range(len(trace))
    ttft = np.array([ends[seen.first[i]] - trace.arrival_s[i] for i in count])
    gaps = [np.diff(ends[seen.first[i] : seen.last[i] + 1]) for i in count]
    return Tokens(
        ttft, np.concatenate(gaps) if gaps else np.zeros(0), busy, float(ends[-1]) if len(ends) else 0.0, steps
    )


def busy_share(trace: Trace, profile: Profile, slots: int) -> float:
    """The share of the trace's duration in which the engine is at work. Work that is left at its end counts: above 1
    the engine falls behind."""
    return serve(trace, profile, slots).busy_s / trace.duration_s if len(trace) else 0.0
