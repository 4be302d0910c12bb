"""Which tokens a row may draw: top-k, min-p and top-p without sorting the vocabulary."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headrace_wire.protocol import Sampling

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_BINS, _NATS = 1024, 24.0  # tokens are binned by their distance from the likeliest; the last bin has the rest


def kept(logits: Floats, s: Sampling) -> Ids:
    """Token ids in rising order; `logits` [vocab] are divided by the temperature already.

    Kept are the top_k largest, of those the ones with min_p of the likeliest one's probability, and of those the fewest
    that reach top_p. Of equal logits the lower ids rank first; the likeliest token is always kept.
    """
    peak = float(logits.max())
    if math.isnan(peak):  # nothing compares with it
        return np.array([logits.argmax()])
    least = peak + math.log(s.min_p) if s.min_p > 0.0 else -math.inf
    if 0 < s.top_k < len(logits):
        ranked = _ranked(logits, s.top_k)
        ranked = ranked[logits[ranked] >= least]
        if s.top_p < 1.0:
            weights = np.exp(logits[ranked] - peak, dtype=np.float64)
            ranked = ranked[: _reaching(weights, s.top_p * weights.sum())]
        return np.sort(ranked)
    if s.top_p < 1.0:
        return _nucleus(logits, peak, least, s.top_p)
    return np.flatnonzero(logits >= least)


def _ranked(logits: Floats, count: int) -> Ids:
    """The `count` largest, largest first."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    found = np.flatnonzero(logits >= least)
    return found[np.argsort(-logits[found], kind="stable")][:count]


def _nucleus(logits: Floats, peak: float, least: float, share: float) -> Ids:
    """The fewest largest ones that have `share` of the weight of all from `least` on, in rising order.

    Whole bins are taken until one reaches the share; only that one is sorted.
    """
    weights = np.exp(logits - peak, dtype=np.float64)
    if least > -math.inf:
        weights[logits < least] = 0.0
    bins = np.minimum((peak - logits) * (_BINS / _NATS), _BINS - 1).astype(np.int64)
    sums = np.cumsum(np.bincount(bins, weights, _BINS))
    last = int(np.searchsorted(sums, share * sums[-1]))
    at = np.flatnonzero(bins == last)
    at = at[np.argsort(-logits[at], kind="stable")]
    before = sums[last - 1] if last else 0.0
    cut = at[: _reaching(weights[at], share * sums[-1] - before)]
    return np.sort(np.concatenate((np.flatnonzero(bins < last), cut)))


def _reaching(weights: npt.NDArray[np.float64], reach: float) -> int:
    """How many of them, from the first on, it takes to sum up to `reach`; at least one."""
    return int(np.searchsorted(np.cumsum(weights), reach)) + 1
