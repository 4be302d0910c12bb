"""Breakers: an endpoint that fails again and again gets no traffic for a while, then a few probes. Times are arguments.

Failures are the endpoint's own (no connection, broken stream, 5xx, time-out); a 4xx or a cancelled request is none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a breaker opens and closes."""

    failures: int = 5  # in a row
    open_s: float = 5.0  # first time; doubles with each reopening
    open_max_s: float = 60.0
    probes: int = 1  # at one time, while half-open
    successes: int = 2  # in a row that close it


@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    successes: int = 0
    opened_at: float | None = None  # None = closed
    openings: int = 0
    probing: int = 0


class Permit:
    """One attempt at an endpoint. The first of success, failure and abandon counts."""

    __slots__ = ("_breakers", "_done", "_probe", "endpoint")

    def __init__(self, breakers: Breakers, endpoint: str, probe: bool):
        self.endpoint = endpoint
        self._breakers = breakers
        self._probe = probe
        self._done = False

    def success(self) -> None:
        """The endpoint answered."""
        self._end(None, good=True)

    def failure(self, now: float) -> None:
        """The endpoint failed."""
        self._end(now, good=False)

    def abandon(self) -> None:
        """It says nothing of the endpoint: the client left, or asked for what cannot be."""
        self._end(None, good=False)

    def _end(self, failed_at: float | None, *, good: bool) -> None:
        if not self._done:
            self._done = True
            self._breakers.end(self.endpoint, self._probe, failed_at, good=good)


class Breakers:
    """The breakers of one gateway by endpoint; an endpoint without failures takes no room."""

    def __init__(self, settings: BreakerSettings | None = None):
        self._settings = settings or BreakerSettings()
        self._breakers: dict[str, _Breaker] = {}

    def is_open(self, endpoint: str, now: float) -> bool:
        """True while the endpoint rests."""
        breaker = self._breakers.get(endpoint)
        return breaker is not None and breaker.opened_at is not None and now < breaker.opened_at + self._rest(breaker)

    def allows(self, endpoint: str, now: float) -> bool:
        """True where a request may be sent: closed, or half-open with a probe free."""
        breaker = self._breakers.get(endpoint)
        if breaker is None or breaker.opened_at is None:
            return True
        return not self.is_open(endpoint, now) and breaker.probing < self._settings.probes

    def may_probe(self, endpoint: str) -> bool:
        """True where a probe is free, even while the endpoint rests: for when all of them do."""
        breaker = self._breakers.get(endpoint)
        return breaker is None or breaker.probing < self._settings.probes

    def acquire(self, endpoint: str) -> Permit:
        """Begin an attempt, at dispatch."""
        breaker = self._breakers.get(endpoint)
        probe = breaker is not None and breaker.opened_at is not None
        if breaker is not None and probe:
            breaker.probing += 1
        return Permit(self, endpoint, probe)

    def forget(self, endpoint: str) -> None:
        """The endpoint is gone."""
        self._breakers.pop(endpoint, None)

    def end(self, endpoint: str, probe: bool, failed_at: float | None, *, good: bool) -> None:
        """For Permit alone."""
        breaker = self._breakers.get(endpoint)
        if breaker is None:
            if failed_at is None:
                return
            breaker = self._breakers[endpoint] = _Breaker()
        if probe:
            breaker.probing = max(0, breaker.probing - 1)
        if failed_at is not None:
            self._failed(breaker, failed_at)
        elif good:
            self._succeeded(endpoint, breaker, probe)

    def _failed(self, breaker: _Breaker, now: float) -> None:
        breaker.successes = 0
        breaker.failures += 1
        if breaker.opened_at is None:
            if breaker.failures >= self._settings.failures:
                breaker.opened_at, breaker.openings = now, 1
        elif now >= breaker.opened_at + self._rest(breaker):  # a probe failed; stragglers of before do not prolong
            breaker.opened_at, breaker.openings = now, breaker.openings + 1

    def _succeeded(self, endpoint: str, breaker: _Breaker, probe: bool) -> None:
        if breaker.opened_at is None:
            breaker.failures = 0
        elif probe:
            breaker.successes += 1
        if breaker.opened_at is None or breaker.successes >= self._settings.successes:
            if breaker.probing == 0:
                del self._breakers[endpoint]
            else:
                breaker.opened_at, breaker.failures, breaker.successes = None, 0, 0

    def _rest(self, breaker: _Breaker) -> float:
        return min(self._settings.open_max_s, self._settings.open_s * 2.0 ** min(breaker.openings - 1, 16))
