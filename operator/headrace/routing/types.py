"""The words of routing: endpoints, requests, and why none was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace_wire.protocol import EngineState


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine pod, as a gateway sees it now. Times are in seconds of the gateway's clock."""

    id: str  # pod name
    address: str  # host:port
    since: float  # when it first became ready
    ready: bool = True
    terminating: bool = False
    report: EngineState | None = None  # the last one; None: never
    reported_at: float | None = None  # when that came


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What routing needs to know of a request."""

    id: str
    prompt_tokens: int  # after prefix hits, where they are known
    predicted_output: int  # tokens, over all choices
    ttft_s: float  # target of its class
    waited_s: float = 0.0  # since it arrived
    choices: int = 1
    avoid: frozenset[str] = frozenset()  # endpoints on which it has failed

    @property
    def slack_s(self) -> float:
        """What is left of the target; a quarter of it at least, so that a late request still gets in."""
        return max(self.ttft_s - self.waited_s, self.ttft_s / 4)


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of routing."""

    silent_s: float = 10.0  # an endpoint that has not reported for so long is chosen last
    slow_start_s: float = 10.0  # a new endpoint's slots grow over so long
    prefill_share: float = 0.5  # of the slack that queued prefill may take
    page_tokens: int = 64


class Why(str, Enum):
    """Why no endpoint can take a request now."""

    NO_ENDPOINTS = "no endpoint exists"
    NOT_READY = "no endpoint is ready"
    NO_REPORT = "no endpoint has reported its state yet"
    DRAINING = "every endpoint is draining"
    BREAKER = "every endpoint has just failed"
    AVOIDED = "every other endpoint is out of reach"
    SLOTS = "every slot is taken"
    PAGES = "too few free KV pages"
    PREFILL = "too much prefill is queued"

    @property
    def contended(self) -> bool:
        """True where endpoints serve and are full (429); False where only new ones could help (503)."""
        return self in (Why.SLOTS, Why.PAGES, Why.PREFILL)

    @property
    def this_request_only(self) -> bool:
        """True where another request might fit. Queued prefill holds all back: whatever passes would lengthen it."""
        return self in (Why.PAGES, Why.AVOIDED)


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """No endpoint was chosen."""

    why: Why
    detail: str = ""
