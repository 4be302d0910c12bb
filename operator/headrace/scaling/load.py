"""What was asked of a Model and how fast it was served: bounded histories that forecasts and capacity are learned from.

Arrivals are kept in bins of five seconds over the last half hour, service in blocks of half a minute.
"""

from __future__ import annotations

from collections import deque

import msgspec

BIN_S = 5.0
BINS = 360
BLOCK_S = 30.0
BLOCKS = 60
HOLE_S = 60.0  # after a longer one the history begins anew


class Block(msgspec.Struct, frozen=True):
    """Service over half a minute. Means per replica are sums divided by `replica_s`."""

    at: float  # unix seconds, end
    replica_s: float  # seconds of replicas that served
    request_s: float  # seconds of requests in flight
    admitted: float  # requests that began
    queued_s: float  # seconds in which something waited for a replica
    span_s: float


class LoadState(msgspec.Struct, frozen=True, kw_only=True):
    """A Load as data."""

    first: int | None = None  # number of the oldest bin: unix seconds / BIN_S
    bins: tuple[float, ...] = ()
    at: float | None = None
    open: Block | None = None
    blocks: tuple[Block, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """What one sample adds: counts since the sample before, gauges at its time."""

    at: float
    arrived: float
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

    def add(self, seen: Seen) -> None:
        """Spread what arrived since the sample before over the time between."""
        before, self._at = self._at, seen.at
        if before is None or not 0 < seen.at - before <= HOLE_S:
            self._first, self._open = None, None
            self._bins.clear()
            return
        self._arrive(before, seen.at, seen.arrived)
        self._serve(before, seen)

    def arrivals(self, now: float) -> list[float]:
        """Requests/s in each whole bin, oldest first; the last ends at or before `now`."""
        if self._first is None:
            return []
        whole = min(len(self._bins), int(now // BIN_S) - self._first)
        return [count / BIN_S for count in list(self._bins)[: max(0, whole)]]

    def blocks(self) -> tuple[Block, ...]:
        """Service, oldest first."""
        return tuple(self._blocks)

    def state(self) -> LoadState:
        """For storing."""
        return LoadState(
            first=self._first, bins=tuple(self._bins), at=self._at, open=self._open, blocks=tuple(self._blocks)
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

    def _serve(self, before: float, seen: Seen) -> None:
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
        )
        self._open = block
        if block.span_s >= BLOCK_S - 1e-6:
            self._open = None
            if block.replica_s > 0:
                self._blocks.append(block)
