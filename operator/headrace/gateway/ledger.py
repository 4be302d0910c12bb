"""Outcomes: how each request ended, exactly once, and what that counts as. Pure; times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.api.gateway_state import Answered
from headrace.api.slo import ServiceClass


class Outcome(str, Enum):
    """How a request ended."""

    GOOD = "good"
    LATE = "late"
    ERROR = "error"
    SHED = "shed"
    CANCELLED = "cancelled"
    QUOTA = "quota"


@dataclass
class Times:
    """When a request passed each point; None = not yet."""

    arrived: float  # the whole request was there
    dispatched: float | None = None
    first: float | None = None  # first event with content sent to the client
    last: float | None = None  # last event with content


@dataclass(frozen=True)
class Measured:
    """Latencies of an ended request, in seconds; None = undefined for it."""

    ttft: float | None
    tpot: float | None
    e2e: float


def measure(times: Times, ended: float, output_tokens: int) -> Measured:
    """Latencies of one choice; `output_tokens` of that choice."""
    ttft = tpot = None
    if times.first is not None:
        ttft = times.first - times.arrived
        if output_tokens > 1:
            tpot = (max(times.last or times.first, times.first) - times.first) / (output_tokens - 1)
    return Measured(ttft, tpot, ended - times.arrived)


def within(service: ServiceClass, measured: Measured) -> bool:
    """Every target that applies was met. An answer without content has no TTFT: its whole time stands for it."""
    ttft = measured.e2e if measured.ttft is None else measured.ttft
    if ttft > service.ttft_s:
        return False
    if measured.tpot is not None and measured.tpot > service.tpot_s:
        return False
    return service.e2e_s is None or measured.e2e <= service.e2e_s


def missed_already(service: ServiceClass, times: Times, now: float) -> bool:
    """A target had passed when the client left at `now`."""
    first = now if times.first is None else times.first
    if first - times.arrived > service.ttft_s:
        return True
    return service.e2e_s is not None and now - times.arrived > service.e2e_s


@dataclass
class ClassBook:
    """Counters of one class of one model; they only grow, `in_flight` apart."""

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    offered: int = 0  # ended requests that count as offered
    offered_tokens: int = 0  # their prompt and output tokens
    admitted: int = 0  # requests ever dispatched
    in_flight: int = 0  # dispatched, not ended
    answered: Answered = field(default_factory=Answered)

    def end(self, outcome: Outcome, tokens: int, *, target_missed: bool) -> None:
        """Count an ended request. `quota` is never offered, `cancelled` only if a target had already passed."""
        self.outcomes[outcome] += 1
        if outcome is Outcome.QUOTA or (outcome is Outcome.CANCELLED and not target_missed):
            return
        self.offered += 1
        self.offered_tokens += max(0, tokens)


@dataclass
class TenantBook:
    """Counters of one tenant; they only grow."""

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    refused: dict[str, int] = field(default_factory=dict)  # by the error's code

    def end(self, outcome: Outcome | None, code: str) -> None:
        """Count an ended request; `outcome` None: it was no valid one; `code` "": it was answered."""
        if outcome is not None:
            self.outcomes[outcome] += 1
        if code and outcome is not Outcome.CANCELLED:
            self.refused[code] = self.refused.get(code, 0) + 1


@dataclass
class Books:
    """All counters by (namespace, model) and class, and by (namespace, tenant)."""

    classes: dict[tuple[str, str], dict[str, ClassBook]] = field(default_factory=dict)
    tenants: dict[tuple[str, str], TenantBook] = field(default_factory=dict)
    last_request: dict[tuple[str, str], float] = field(default_factory=dict)  # arrival, monotonic seconds

    def book(self, model: tuple[str, str], service: str) -> ClassBook:
        """The counters of a class, made on first use."""
        books = self.classes.setdefault(model, {})
        if service not in books:
            books[service] = ClassBook()
        return books[service]

    def tenant(self, tenant: tuple[str, str]) -> TenantBook:
        """The counters of a tenant, made on first use."""
        return self.tenants.setdefault(tenant, TenantBook())

    def forget_tenant(self, tenant: tuple[str, str]) -> None:
        """The tenant is gone."""
        self.tenants.pop(tenant, None)

    def forget(self, model: tuple[str, str]) -> None:
        """The model is gone."""
        self.classes.pop(model, None)
        self.last_request.pop(model, None)
