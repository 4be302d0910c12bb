"""Which replicas go when there are to be fewer: those whose end costs least. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace_wire.protocol import EngineState


class Worth(msgspec.Struct, frozen=True):
    """What ends with one replica."""

    pod: str
    in_flight_tokens: int | None  # of requests that run or wait there; None: it does not say
    prefix_tokens: float = 0.0  # of its cache, that requests to come are expected to find there


def worth(pod: str, state: EngineState | None) -> Worth:
    """From the engine's report. A cache is worth what it holds times the share of prompt tokens that it has served:
    what other replicas hold, too, is not known here."""
    if state is None:
        return Worth(pod, None)
    held = max(0, state.total - state.free - state.evictable)
    cache, page = state.cache, max(1, state.model.page_tokens)
    found = min(1.0, max(0, cache.hit_tokens) / cache.asked_tokens) if cache.asked_tokens > 0 else 0.0
    return Worth(pod, held * page + max(0, state.queued_tokens), max(0, cache.blocks) * page * found)


def victims(replicas: Sequence[Worth], count: int) -> frozenset[str]:
    """The pods to end: those with the fewest tokens in flight, of these with the least worth in their cache.

    A replica that does not say what it does comes last; a tie goes by name.
    """

    def price(item: Worth) -> tuple[bool, int, float, str]:
        return item.in_flight_tokens is None, item.in_flight_tokens or 0, item.prefix_tokens, item.pod

    return frozenset(item.pod for item in sorted(replicas, key=price)[: max(0, count)])
