"""The words of admission: what is asked of a quota, what waits in a queue, and why either says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from headrace_wire.reasons import Reason, RequestError

T = TypeVar("T")
TenantKey = tuple[str, str]
"""(namespace, name)."""


class Limit(str, Enum):
    """A limit of a tenant's quota, named as in its spec."""

    REQUESTS_PER_MINUTE = "requestsPerMinute"
    TOKENS_PER_MINUTE = "tokensPerMinute"
    TOKENS_PER_DAY = "tokensPerDay"
    CONCURRENT_REQUESTS = "concurrentRequests"
    MAX_TOKENS_PER_REQUEST = "maxTokensPerRequest"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request may cost at most."""

    prompt_tokens: int
    output_tokens: int  # limit of one choice
    choices: int = 1

    @property
    def output_total(self) -> int:
        """Output tokens of all choices."""
        return self.output_tokens * self.choices

    @property
    def tokens(self) -> int:
        """Prompt and all choices' outputs."""
        return self.prompt_tokens + self.output_total


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is not let in. `reason.status` is the HTTP status."""

    reason: Reason
    message: str
    retry_after_s: float | None = None  # None: trying again is of no use, or nobody knows when
    limit: Limit | None = None  # the limit that bound, for quota refusals

    def error(self) -> RequestError:
        """The same as an exception for the edge to raise."""
        return RequestError(self.reason, self.message, retry_after=self.retry_after_s)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a limit."""

    limit: int
    remaining: int
    reset_s: float  # seconds until all of it is there again, if nothing else comes


@dataclass(frozen=True, slots=True)
class Usage:
    """A tenant's use of its quota, reservations included."""

    requests_last_minute: int = 0
    tokens_last_minute: int = 0
    tokens_today: int = 0
    concurrent_requests: int = 0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one Model's queue."""

    requests: int = 1000
    bytes: int = 64 * 1024 * 1024
    cold_wait_s: float = 300.0  # how long a request waits while no endpoint exists
    lookahead: int = 16  # items of one class that may be tried behind a head that does not fit
    overtakes: int = 32  # a head overtaken so often holds the line until it is admitted
    aged_share: int = 4  # of so many dispatches under contention one goes to a class that has aged


@dataclass(frozen=True, slots=True)
class ClassRule:
    """How one class waits."""

    priority: int  # higher first
    ttft_s: float  # target; a request that can no longer begin in time is shed
    ageing_s: float | None = None  # a head older than this may go before higher classes; None: a quarter of ttft_s

    @property
    def aged_after_s(self) -> float:
        """Seconds after which the head of this class counts as aged."""
        return self.ttft_s / 4 if self.ageing_s is None else self.ageing_s


class Blocked(Enum):
    """Why an item cannot be dispatched now."""

    ITEM = "item"  # another, smaller one may fit
    ALL = "all"  # nothing can be dispatched now


@dataclass(slots=True, eq=False)
class Item(Generic[T]):
    """One request in a queue. Times are in seconds of one clock."""

    id: str
    tenant: TenantKey
    service_class: str
    arrived: float  # when the whole request was there
    payload: T  # the edge's own; never looked at here
    prompt_tokens: int = 0
    bytes: int = 0
    deadline_s: float | None = None  # the client's x-headrace-deadline-ms, after `arrived`
    latest: float = field(default=0.0)  # must be dispatched by then; set by the queue
    overtaken: int = field(default=0)
    cold: bool = field(default=False)  # has waited while no endpoint existed


@dataclass(frozen=True, slots=True)
class Expired(Generic[T]):
    """An item that left the queue undispatched, and why."""

    item: Item[T]
    refusal: Refusal
