"""Quotas: reserve before, settle after. All limits of a tenant hold together, or nothing is taken.

Minutes slide. A charge counts in the second in which it was reserved, for the 60 whole seconds after that second ends,
so that the charges of any 60 seconds stay within the limit; what is counted late is at most one second. Days are UTC.
A running request's reservation is not renewed: it counts in its own minute, corrected there when it settles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.admission.types import Allowance, Ask, Limit, Refusal, TenantKey, Usage
from headrace.api.tenant import Quota
from headrace_wire.reasons import Reason

MINUTE = 60
DAY = 86_400
CONCURRENCY_RETRY_S = 1.0  # nobody knows when a running request ends


@dataclass(slots=True)
class SlidingMinute:
    """Charges of the last minute by the second in which they were made. At most 62 entries."""

    by_second: dict[int, int] = field(default_factory=dict)  # in order of time
    total: int = 0

    def sweep(self, now: float) -> None:
        """Forget what is older than a minute."""
        while self.by_second:
            second = next(iter(self.by_second))
            if second + 1 + MINUTE > now:
                return
            self.total -= self.by_second.pop(second)

    def add(self, second: int, amount: int) -> None:
        """Charge; a negative amount corrects an earlier charge of that second."""
        self.by_second[second] = self.by_second.get(second, 0) + amount
        self.total += amount

    def fits_in(self, amount: int, limit: int, now: float) -> float:
        """Seconds until `amount` (at most `limit`) fits, if nothing else comes; 0 = now."""
        excess = self.total + amount - limit
        for second, charged in self.by_second.items():
            if excess <= 0:
                break
            excess -= charged
            if excess <= 0:
                return max(0.0, second + 1 + MINUTE - now)
        return 0.0


@dataclass(slots=True)
class _Account:
    """One tenant's charges. Time never runs backwards here: an earlier `now` is read as the latest seen."""

    quota: Quota
    requests: SlidingMinute = field(default_factory=SlidingMinute)
    tokens: SlidingMinute = field(default_factory=SlidingMinute)
    day: int = 0  # days since the epoch
    day_tokens: int = 0
    running: int = 0
    latest: float = 0.0

    def advance(self, now: float) -> float:
        self.latest = now = max(now, self.latest)
        self.requests.sweep(now)
        self.tokens.sweep(now)
        day = int(now // DAY)
        if day != self.day:
            self.day, self.day_tokens = day, 0
        return now

    def in_window(self, at: float) -> bool:
        """True where charges of that time still count, so that they can be corrected."""
        return int(at) + 1 + MINUTE > self.latest

    def charge_tokens(self, at: float, tokens: int) -> None:
        if self.in_window(at):
            self.tokens.add(int(at), tokens)
        if int(at // DAY) == self.day:
            self.day_tokens += tokens


@dataclass(frozen=True, slots=True)
class _Bound:
    """A limit that a request meets now."""

    limit: Limit
    allowed: int
    used: int
    asked: int
    wait_s: float

    def sentence(self) -> str:
        return f"{self.limit.value} is {self.allowed}, {self.used} in use or reserved, {self.asked} asked for"


class Reservation:
    """What one request holds of its tenant's quota. Ends exactly once: the first settle or cancel counts."""

    __slots__ = ("_account", "_at", "_charged_at", "_open", "ask")

    def __init__(self, account: _Account, ask: Ask, at: float):
        self.ask = ask
        self._account = account
        self._at = at
        self._charged_at = at  # the tokens; later than `_at` after a recount
        self._open = True

    @property
    def open(self) -> bool:
        """True until settled or cancelled."""
        return self._open

    def settle(self, tokens: int, now: float) -> None:
        """The request ended, having used `tokens` (prompt and output). Idempotent."""
        if not self._close(now):
            return
        difference = max(0, tokens) - self.ask.tokens
        self._account.charge_tokens(self._charged_at if difference < 0 else self._account.latest, difference)

    def cancel(self, now: float) -> None:
        """The request was never served: everything is given back, the request itself too. Idempotent."""
        if not self._close(now):
            return
        self._account.charge_tokens(self._charged_at, -self.ask.tokens)
        if self._account.in_window(self._at):
            self._account.requests.add(int(self._at), -1)

    def amend(self, ask: Ask, now: float) -> Refusal | None:
        """Replace the ask, by a recount; a larger one counts from now on. A Refusal changes nothing: then cancel."""
        if not self._open:
            return None
        account = self._account
        now = account.advance(now)
        account.charge_tokens(self._charged_at, -self.ask.tokens)
        more = ask.tokens > self.ask.tokens
        refusal = _decide(_token_bounds(account, ask.tokens if more else 0, now), _impossible(account.quota, ask), ask)
        if refusal is not None:
            account.charge_tokens(self._charged_at, self.ask.tokens)
            return refusal
        self._charged_at = now if more else self._charged_at
        account.charge_tokens(self._charged_at, ask.tokens)
        self.ask = ask
        return None

    def _close(self, now: float) -> bool:
        if not self._open:
            return False
        self._open = False
        self._account.advance(now)
        self._account.running -= 1
        return True


class QuotaLedger:
    """The quotas of all tenants of one gateway. `now` is unix seconds everywhere."""

    def __init__(self) -> None:
        self._accounts: dict[TenantKey, _Account] = {}

    def configure(self, tenant: TenantKey, quota: Quota) -> None:
        """Set a tenant's limits; what it has used stays counted."""
        account = self._accounts.get(tenant)
        if account is None:
            self._accounts[tenant] = _Account(quota)
        else:
            account.quota = quota

    def forget(self, tenant: TenantKey) -> None:
        """The tenant is gone; its open reservations may still end."""
        self._accounts.pop(tenant, None)

    def reserve(self, tenant: TenantKey, ask: Ask, now: float) -> Reservation | Refusal:
        """Take what the request may cost at most from every limit, or from none. Raises KeyError if not configured."""
        account = self._accounts[tenant]
        now = account.advance(now)
        bounds = [*_request_bounds(account, now), *_token_bounds(account, ask.tokens, now)]
        refusal = _decide(bounds, _impossible(account.quota, ask), ask)
        if refusal is not None:
            return refusal
        account.requests.add(int(now), 1)
        account.charge_tokens(now, ask.tokens)
        account.running += 1
        return Reservation(account, ask, now)

    def allowances(self, tenant: TenantKey, now: float) -> dict[bytes, Allowance]:
        """What is left of a tenant's minutes, by `requests` and `tokens`; only limits that it has."""
        account = self._accounts[tenant]
        now = account.advance(now)
        rows = (
            (b"requests", account.quota.requests_per_minute, account.requests),
            (b"tokens", account.quota.tokens_per_minute, account.tokens),
        )
        return {kind: _allowance(limit, minute, now) for kind, limit, minute in rows if limit is not None}

    def usage(self, tenant: TenantKey, now: float) -> Usage:
        """What a tenant uses; zeros for one that is not configured."""
        account = self._accounts.get(tenant)
        if account is None:
            return Usage()
        account.advance(now)
        return Usage(account.requests.total, account.tokens.total, account.day_tokens, account.running)


def _allowance(limit: int, minute: SlidingMinute, now: float) -> Allowance:
    last = next(reversed(minute.by_second), None)
    reset_s = 0.0 if last is None else max(0.0, last + 1 + MINUTE - now)
    return Allowance(limit, max(0, limit - minute.total), reset_s)


def _request_bounds(account: _Account, now: float) -> Iterator[_Bound]:
    quota = account.quota
    limit = quota.requests_per_minute
    if limit is not None and account.requests.total + 1 > limit:
        wait = account.requests.fits_in(1, limit, now)
        yield _Bound(Limit.REQUESTS_PER_MINUTE, limit, account.requests.total, 1, wait)
    limit = quota.concurrent_requests
    if limit is not None and account.running + 1 > limit:
        yield _Bound(Limit.CONCURRENT_REQUESTS, limit, account.running, 1, CONCURRENCY_RETRY_S)


def _token_bounds(account: _Account, tokens: int, now: float) -> Iterator[_Bound]:
    quota = account.quota
    limit = quota.tokens_per_minute
    if tokens and limit is not None and account.tokens.total + tokens > limit:
        wait = account.tokens.fits_in(tokens, limit, now)
        yield _Bound(Limit.TOKENS_PER_MINUTE, limit, account.tokens.total, tokens, wait)
    limit = quota.tokens_per_day
    if tokens and limit is not None and account.day_tokens + tokens > limit:
        yield _Bound(Limit.TOKENS_PER_DAY, limit, account.day_tokens, tokens, (account.day + 1) * DAY - now)


def _impossible(quota: Quota, ask: Ask) -> Refusal | None:
    """The limit that the request could not meet even with nothing else in use."""
    checks = (
        (Limit.MAX_TOKENS_PER_REQUEST, quota.max_tokens_per_request, ask.output_total, "output tokens"),
        (Limit.TOKENS_PER_MINUTE, quota.tokens_per_minute, ask.tokens, "prompt and output tokens"),
        (Limit.TOKENS_PER_DAY, quota.tokens_per_day, ask.tokens, "prompt and output tokens"),
    )
    for limit, allowed, asked, what in checks:
        if allowed is not None and asked > allowed:
            times = f", {ask.choices} choices of {ask.output_tokens}" if ask.choices > 1 else ""
            message = (
                f"The request may need {asked} {what}{times}, which the tenant's quota never allows "
                f"({limit.value} is {allowed}); ask for fewer."
            )
            return Refusal(Reason.REQUEST_TOO_LARGE_FOR_QUOTA, message, limit=limit)
    return None


def _decide(bounds: Iterator[_Bound] | list[_Bound], impossible: Refusal | None, ask: Ask) -> Refusal | None:
    if impossible is not None:
        return impossible
    met = sorted(bounds, key=lambda b: -b.wait_s)
    if not met:
        return None
    message = f"The tenant's quota is used up: {'; '.join(b.sentence() for b in met)}."
    return Refusal(Reason.QUOTA_EXCEEDED, message, retry_after_s=max(met[0].wait_s, 0.001), limit=met[0].limit)
