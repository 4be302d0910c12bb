"""`GET /internal/v1/state` of a gateway: what the operator's leader polls each second. Counters only grow.

Unknown fields are ignored when decoding, so that gateways and operators of neighbouring versions understand each other.
"""

from __future__ import annotations

import msgspec

from headrace_wire.protocol import EngineState

OUTCOMES = ("good", "late", "error", "shed", "cancelled", "quota")


class Answered(msgspec.Struct, kw_only=True):
    """Requests that were answered whole, good or late, and their tokens, since `started_at`."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, found in an engine's prefix cache
    output_tokens: int = 0
    attended_kilotokens: float = 0.0  # thousands of tokens that computed prompt tokens attend to: P^2 / 2 for P

    def add(self, prompt: int, cached: int, output: int) -> None:
        """One more, with its tokens."""
        prompt, output = max(0, prompt), max(0, output)
        cached = min(max(0, cached), prompt)
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.output_tokens += output
        self.attended_kilotokens += (prompt * prompt - cached * cached) / 2000

    def copy(self) -> Answered:
        """As it is now."""
        return msgspec.structs.replace(self)


class ClassState(msgspec.Struct, frozen=True, kw_only=True):
    """One class of one model, as one gateway sees it."""

    name: str
    queued: int = 0  # requests not yet dispatched
    queued_tokens: int = 0  # their prompt tokens
    oldest_age_s: float | None = None  # of the oldest undispatched request; None = nothing queued
    in_flight: int = 0  # dispatched, not ended
    outcomes: dict[
        str, int
    ] = {}  # by OUTCOMES, since `started_at`; offered = sum - quota - cancelled before a target passed
    offered: int = 0  # requests that ended and count as offered, since `started_at`
    admitted: int = 0  # requests ever dispatched, since `started_at`
    offered_tokens: int = 0  # prompt + output tokens of offered requests, since `started_at`
    answered: Answered = msgspec.field(default_factory=Answered)


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of one engine that this gateway polled."""

    pod: str
    address: str
    age_s: float | None = None  # since the report came; None = never
    in_flight: int = 0  # this gateway's requests there
    state: EngineState | None = None


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model, as one gateway sees it."""

    namespace: str
    name: str
    observed_generation: int = 0
    classes: list[ClassState] = []
    engines: list[EngineReport] = []
    last_request_age_s: float | None = None  # since the last request arrived; None = none since `started_at`


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant, as one gateway enforces it."""

    namespace: str
    name: str
    observed_generation: int = 0
    requests_last_minute: int = 0
    tokens_last_minute: int = 0
    tokens_today: int = 0
    concurrent_requests: int = 0
    outcomes: dict[str, int] = {}  # by OUTCOMES, since `started_at`
    refused: dict[str, int] = {}  # requests that got an error, by its code, since `started_at`


class GatewayState(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway knows."""

    gateway: str  # id: the pod's name
    started_at: float  # unix seconds
    uptime_s: float
    seq: int = 0
    models: list[ModelState] = []
    tenants: list[TenantState] = []
