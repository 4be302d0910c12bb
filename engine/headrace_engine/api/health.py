"""Health means progress while work is pending; readiness means that a new request would be taken."""

from __future__ import annotations

from enum import Enum

from headrace_engine.api.client import CoreLink

STALL_S = 60.0  # without progress while work is pending: longer than any single step


class Health(str, Enum):
    """The engine as a liveness probe sees it."""

    OK = "ok"
    LOADING = "loading"
    CORE_DEAD = "core dead"
    STALLED = "stalled"

    @property
    def status(self) -> int:
        """HTTP status."""
        return 200 if self in (Health.OK, Health.LOADING) else 503


class Readiness(str, Enum):
    """The engine as a readiness probe sees it."""

    READY = "ready"
    LOADING = "loading"
    DRAINING = "draining"
    CORE_DEAD = "core dead"

    @property
    def status(self) -> int:
        """HTTP status."""
        return 200 if self is Readiness.READY else 503


def health(link: CoreLink, now: float, stall_s: float = STALL_S) -> Health:
    """`now` is on the link's clock, in seconds."""
    if link.died.is_set():
        return Health.CORE_DEAD
    if link.ready is None:
        return Health.LOADING
    if link.open_choices and now - link.progress.at > stall_s:
        return Health.STALLED
    return Health.OK


def readiness(link: CoreLink, *, draining: bool) -> Readiness:
    """Red at once when draining begins or the core is gone."""
    if draining:
        return Readiness.DRAINING
    if link.died.is_set():
        return Readiness.CORE_DEAD
    return Readiness.LOADING if link.ready is None else Readiness.READY
