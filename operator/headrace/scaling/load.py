"""What was asked of a Model and how fast it was served: bounded histories that forecasts and capacity are learned from.

Arrivals are kept in bins of five seconds over the last half hour, service in blocks of half a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.scaling.capacity import Block, Capacity, anchored, capacity
from headrace.scaling.profile import Answers
from headrace.scaling.recall import Point, Recalled, recall

BIN_S = 5.0
BINS = 360
BLOCK_S = 30.0
BLOCKS = 60
HOLE_S = 60.0  # after a longer one the history begins anew


class LoadState(msgspec.Struct, frozen=True, kw_only=True):
    """A Load as data."""

    first: int | None = None  # number of the oldest bin: unix seconds / BIN_S
    bins: tuple[float, ...] = ()
    at: float | None = None
    open: Block | None = None
    blocks: tuple[Block, ...] = ()
    queued: int = 0  # requests that waited at the last sample
    carried: tuple[float, float] = (0.0, 0.0)  # that left the queue and that began, and are not yet counted
    known: tuple[int, float] | None = None  # slots, requests/s that a replica was last known to take
    answers: Answers = Answers()
    recalled: tuple[float, ...] = ()  # requests/s of the bins before `first`, from a time series database


class Seen(msgspec.Struct, frozen=True):
    """What one whole sample adds: counts since the sample before, gauges at its time."""

    at: float
    left: float  # requests that left the queue: began, or were shed
    admitted: float
    replicas: int
    in_flight: int
    queued: int


class Load:
    """The history of one Model. `add` in order of time."""

    def __init__(self, state: LoadState | None = None):
        state = state or LoadState()
        self._first = state.first
        self._bins: deque[float] = deque(state.bins)
        self._at = state.at
        self._open = state.open
        self._blocks: deque[Block] = deque(state.blocks, maxlen=BLOCKS)
        self._queued = state.queued
        self._carried = state.carried
        self._known = state.known
        self._recalled = state.recalled
        self.answers = state.answers  # the mix of requests
        self._learned: tuple[int, Capacity] | None = None  # slots, what the blocks say

    def add(self, seen: Seen) -> None:
        """Spread what arrived since the sample before over the time between."""
        before, self._at = self._at, seen.at
        grown, self._queued = seen.queued - self._queued, seen.queued
        waited = seen.queued > 0 and seen.queued > grown
        left, admitted = seen.left + self._carried[0], seen.admitted + self._carried[1]
        self._carried = (0.0, 0.0)
        if before is None or not 0 < seen.at - before <= HOLE_S:
            self._first, self._open, self._recalled = None, None, ()
            self._bins.clear()
            return
        self._arrive(before, seen.at, max(0.0, left + grown))
        self._serve(before, msgspec.structs.replace(seen, admitted=admitted), waited)

    def carry(self, left: float, admitted: float) -> None:
        """What an incomplete sample knows is counted with the next whole one, over the time until then."""
        self._carried = (self._carried[0] + left, self._carried[1] + admitted)

    def arrivals(self, now: float) -> list[float]:
        """Requests/s in each whole bin, oldest first; the last ends at or before `now`."""
        if self._first is None:
            return []
        whole = min(len(self._bins), int(now // BIN_S) - self._first)
        return [count / BIN_S for count in list(self._bins)[: max(0, whole)]]

    def recall(self, points: Sequence[Point], now: float) -> Recalled:
        """Remember what was asked before the first bin, as far as it can be believed; gives what came of it."""
        fresh = self.arrivals(now)
        if self._first is None or not fresh:
            return Recalled((), "nothing was seen yet to compare with")
        found = recall(points, fresh, self._first * BIN_S, BIN_S, BINS - len(fresh))
        self._recalled = found.rates
        return found

    @property
    def recalls(self) -> bool:
        """True where something of before the first bin is remembered."""
        return bool(self._recalled)

    def remembered(self, now: float) -> list[float]:
        """The arrivals, with those before them that were recalled: half an hour at most."""
        fresh = self.arrivals(now)
        more = min(len(self._recalled), BINS - len(fresh))
        return fresh if more <= 0 else [*self._recalled[-more:], *fresh]

    def capacity(self, slots: int, profile: Capacity | None = None) -> Capacity:
        """What a replica with so many slots takes: by its engines' step times and what service says of them; without
        those by service alone, as it was known last where the last half hour does not show it."""
        found = self._by_service(slots)
        return found if profile is None else anchored(profile, tuple(self._blocks), found)

    def _by_service(self, slots: int) -> Capacity:
        if self._learned is None or self._learned[0] != slots:
            found = capacity(tuple(self._blocks), slots)
            if found.per_second is not None:
                self._known = (slots, found.per_second)
            elif self._known is not None and self._known[0] == slots:
                found = Capacity(
                    self._known[1], f"a replica took {self._known[1]:.3g} requests/s when it was last busy"
                )
            self._learned = (slots, found)
        return self._learned[1]

    @property
    def waited(self) -> bool:
        """True where something waited for a replica in the last half-minutes."""
        return any(b.queued_s > 0 for b in (*list(self._blocks)[-1:], *([] if self._open is None else [self._open])))

    def state(self) -> LoadState:
        """For storing."""
        return LoadState(
            first=self._first,
            bins=tuple(self._bins),
            at=self._at,
            open=self._open,
            blocks=tuple(self._blocks),
            queued=self._queued,
            carried=self._carried,
            known=self._known,
            answers=self.answers,
            recalled=self._recalled,
        )

    def _arrive(self, begin: float, end: float, arrived: float) -> None:
        if self._first is None:
            self._first = int(begin // BIN_S)
            begin = max(begin, self._first * BIN_S)
        rate = max(0.0, arrived) / (end - begin)
        for index in range(int(begin // BIN_S), int(end // BIN_S) + 1):
            while len(self._bins) <= index - self._first:
                self._bins.append(0.0)
            covered = min(end, (index + 1) * BIN_S) - max(begin, index * BIN_S)
            self._bins[index - self._first] += rate * max(0.0, covered)
        while len(self._bins) > BINS + 1:
            self._bins.popleft()
            self._first += 1
            self._recalled = ()  # the fresh bins are half an hour by themselves

    def _serve(self, before: float, seen: Seen, waited: bool) -> None:
        span, block = seen.at - before, self._open
        if block is None:
            block = Block(before, 0.0, 0.0, 0.0, 0.0, 0.0)
        block = Block(
            seen.at,
            block.replica_s + seen.replicas * span,
            block.request_s + seen.in_flight * span,
            block.admitted + max(0.0, seen.admitted),
            block.queued_s + (span if seen.queued else 0.0),
            block.span_s + span,
            *_full(block, seen, span if waited else 0.0),
        )
        self._open = block
        if block.span_s >= BLOCK_S - 1e-6:
            self._open = None
            if block.replica_s > 0:
                self._blocks.append(block)
                self._learned = None


def _full(block: Block, seen: Seen, span: float) -> tuple[float, float, float]:
    """The block's sums over the time in which something waited all the time."""
    if span <= 0:
        return block.full_replica_s, block.full_request_s, block.full_admitted
    return (
        block.full_replica_s + seen.replicas * span,
        block.full_request_s + seen.in_flight * span,
        block.full_admitted + max(0.0, seen.admitted),
    )
