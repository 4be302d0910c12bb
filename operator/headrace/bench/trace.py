"""What is replayed: requests with arrival times, a rate over time, or lengths alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCK_TOKENS = 512  # prompt tokens of one prefix block of a trace


@dataclass(frozen=True)
class Blocks:
    """Prefix blocks of each request: request i has `ids[ends[i-1]:ends[i]]`. Equal leading ids = a reusable prefix."""

    ids: Ints
    ends: Ints  # shape (requests,)

    def of(self, index: int) -> Ints:
        """The block ids of one request."""
        first = 0 if index == 0 else int(self.ends[index - 1])
        return self.ids[first : int(self.ends[index])]

    def take(self, chosen: Ints) -> Blocks:
        """The blocks of the chosen requests, in that order."""
        parts = [self.of(int(i)) for i in chosen]
        ends = np.cumsum([len(p) for p in parts], dtype=np.int64)
        return Blocks(np.concatenate(parts) if parts else np.zeros(0, np.int64), ends)


@dataclass(frozen=True)
class Trace:
    """Requests, sorted by arrival."""

    name: str
    arrival_s: Floats  # seconds from the start, shape (requests,)
    prompt: Ints  # tokens
    output: Ints  # tokens, at least 1
    duration_s: float
    blocks: Blocks | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float:
        """Mean requests/s."""
        return len(self) / self.duration_s if self.duration_s > 0 else 0.0

    def first(self, share: float) -> Trace:
        """The first `share` (0 to 1] of its time."""
        if share >= 1:
            return self
        until = self.duration_s * share
        count = int(np.searchsorted(self.arrival_s, until))
        chosen = np.arange(count, dtype=np.int64)
        return replace(self.take(chosen), duration_s=until)

    def take(self, chosen: Ints) -> Trace:
        """The chosen requests (indices in rising order)."""
        blocks = None if self.blocks is None else self.blocks.take(chosen)
        return replace(
            self,
            arrival_s=self.arrival_s[chosen],
            prompt=self.prompt[chosen],
            output=self.output[chosen],
            blocks=blocks,
        )


@dataclass(frozen=True)
class Lengths:
    """Pairs of prompt and output lengths without arrival times."""

    name: str
    prompt: Ints
    output: Ints


@dataclass(frozen=True)
class Series:
    """A rate over time. Gaps of the source are interpolated."""

    name: str
    window_s: float
    rate: Floats  # requests/s, mean of each window
    cv: Floats  # coefficient of variation of the times between arrivals, of each window
    gaps: int = field(default=0)  # windows that were interpolated

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return len(self.rate) * self.window_s

    def first(self, share: float) -> Series:
        """The first `share` (0 to 1] of its time; at least two windows."""
        count = max(2, round(len(self.rate) * share))
        return replace(self, rate=self.rate[:count], cv=self.cv[:count])

    def at(self, times: Floats) -> tuple[Floats, Floats]:
        """Rate and cv at each time: linear between the middles of the windows."""
        middles = (np.arange(len(self.rate)) + 0.5) * self.window_s
        return np.interp(times, middles, self.rate), np.interp(times, middles, self.cv)
