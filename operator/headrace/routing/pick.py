"""The choice of an endpoint: who can take the request at all, and of those the least loaded.

The load of an endpoint is this gateway's own ledger, which is never late, plus what the last report says of others. A
late report freezes the others' share: it is used as it stands and never read as no load. An endpoint that has fallen
silent is chosen last.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.routing.breaker import Breakers
from headrace.routing.ledger import LoadLedger, predicted_pages
from headrace.routing.types import Endpoint, NoCapacity, RouteRequest, Settings, Why
from headrace_wire.protocol import EngineState, Held


@dataclass(frozen=True, slots=True)
class View:
    """What one gateway knows beside the endpoints themselves."""

    gateway: str  # its id, as engines name it among their holders
    ledger: LoadLedger
    breakers: Breakers
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """An endpoint's load from all sides."""

    endpoint: Endpoint
    requests: int  # sequences
    pages: int
    queued_tokens: int  # prompt tokens not yet prefilled
    slots: int  # requests that it may have at one time, now
    total_pages: int
    prefill_rate: float  # tokens/s; 0 = unknown
    step_tokens: int  # of one engine step
    silent: bool  # its last report is long ago

    @property
    def share(self) -> float:
        """The fuller of slots and pages, 0 to 1."""
        pages = self.pages / self.total_pages if self.total_pages > 0 else 0.0
        return max(self.requests / max(1, self.slots), pages)

    @property
    def prefill_s(self) -> float:
        """Time that the queued prefill takes; one engine step counts as a second where the rate is unknown."""
        rate = self.prefill_rate if self.prefill_rate > 0 else float(max(1, self.step_tokens))
        return self.queued_tokens / rate


def pick(request: RouteRequest, endpoints: Sequence[Endpoint], view: View, now: float) -> Endpoint | NoCapacity:
    """The endpoint for a request, or why there is none. Equal loads are told apart by the request's id."""
    serving = _serving(request, endpoints, view, now)
    if isinstance(serving, NoCapacity):
        return serving
    loads = [measure(e, view, now) for e in serving]
    loads = [_slow_started(load, loads, view.settings, now) for load in loads]
    refusals = [_refuse(load, request, view.settings) for load in loads]
    able = [load for load, refusal in zip(loads, refusals, strict=True) if refusal is None]
    if not able:
        refused = [r for r in refusals if r is not None]
        return next((r for r in refused if r.why.this_request_only), refused[0])
    return min(able, key=lambda load: (load.silent, _cost(load, request), _tie(request.id, load.endpoint.id))).endpoint


def measure(endpoint: Endpoint, view: View, now: float) -> EndpointLoad:
    """The load of an endpoint that has reported at least once."""
    report = endpoint.report
    if report is None or endpoint.reported_at is None:
        raise ValueError(f"endpoint {endpoint.id} has not reported")
    own = view.ledger.held(endpoint.id)
    others = others_share(report, view.gateway)
    return EndpointLoad(
        endpoint=endpoint,
        requests=own.requests + others.requests,
        pages=own.pages + others.pages,
        queued_tokens=own.queued_tokens + others.queued_tokens,
        slots=max(1, report.model.max_sequences),
        total_pages=report.total,
        prefill_rate=report.prefill_rate if math.isfinite(report.prefill_rate) else 0.0,
        step_tokens=report.model.max_batch_tokens,
        silent=now - endpoint.reported_at > view.settings.silent_s,
    )


def others_share(report: EngineState, gateway: str) -> Held:
    """What all but this gateway have on the engine, those included that come past any gateway."""
    own = report.holders.get(gateway, Held())
    used = report.total - report.free - report.evictable
    named = [held for name, held in report.holders.items() if name != gateway]
    return Held(
        requests=max(0, sum(h.requests for h in named), report.running + report.waiting - own.requests),
        pages=max(0, sum(h.pages for h in named), used - own.pages),
        queued_tokens=max(0, sum(h.queued_tokens for h in named), report.queued_tokens - own.queued_tokens),
    )


_CHECKS: tuple[tuple[Why, Callable[[RouteRequest, Endpoint], bool]], ...] = (
    (Why.NOT_READY, lambda _, e: e.ready and not e.terminating),
    (Why.DRAINING, lambda _, e: e.report is None or not e.report.draining),
    (Why.NO_REPORT, lambda _, e: e.report is not None and e.reported_at is not None),
    (Why.AVOIDED, lambda r, e: e.id not in r.avoid),
)


def _serving(
    request: RouteRequest, endpoints: Sequence[Endpoint], view: View, now: float
) -> list[Endpoint] | NoCapacity:
    """Endpoints that may be sent anything at all."""
    left = list(endpoints)
    if not left:
        return NoCapacity(Why.NO_ENDPOINTS)
    for why, keep in _CHECKS:
        kept = [e for e in left if keep(request, e)]
        if not kept:
            return NoCapacity(why, f"{len(left)} endpoints")
        left = kept
    allowed = [e for e in left if view.breakers.allows(e.id, now)]
    if not allowed and all(view.breakers.is_open(e.id, now) for e in left):
        allowed = [e for e in left if view.breakers.may_probe(e.id)]  # all rest: rather probe than refuse everybody
    return allowed or NoCapacity(Why.BREAKER, f"{len(left)} endpoints")


def _slow_started(
    load: EndpointLoad, all_loads: Sequence[EndpointLoad], settings: Settings, now: float
) -> EndpointLoad:
    """A new endpoint's slots grow from one, so that it does not take every request; not if all are new."""
    if settings.slow_start_s <= 0 or all(now - o.endpoint.since < settings.slow_start_s for o in all_loads):
        return load
    grown = max(0.0, now - load.endpoint.since) / settings.slow_start_s
    if grown >= 1:
        return load
    return replace(load, slots=max(1, math.ceil(load.slots * grown)))


def _refuse(load: EndpointLoad, request: RouteRequest, settings: Settings) -> NoCapacity | None:
    """Why the endpoint cannot take the request now. An idle endpoint takes any: its engine has the last word."""
    if load.requests == 0:
        return None
    if load.requests + max(1, request.choices) > load.slots and not (
        request.choices > load.slots and not load.requests
    ):
        return NoCapacity(Why.SLOTS, f"{load.requests} of {load.slots} slots")
    pages = predicted_pages(request)
    if load.total_pages and load.pages + pages > load.total_pages:
        return NoCapacity(Why.PAGES, f"{pages} pages wanted, {load.pages} of {load.total_pages} taken")
    allowed_s = settings.prefill_share * request.slack_s
    if load.queued_tokens and load.prefill_s > allowed_s:
        detail = f"{load.queued_tokens} prompt tokens are queued, {load.prefill_s:.2f} s of {allowed_s:.2f} s allowed"
        return NoCapacity(Why.PREFILL, detail)
    return None


def _cost(load: EndpointLoad, request: RouteRequest) -> float:
    return round(load.share + load.prefill_s / max(request.ttft_s, 1e-3), 6)


def _tie(request: str, endpoint: str) -> bytes:
    """A fixed order of endpoints that differs by request."""
    return hashlib.sha256(f"{len(request)}:{request}{endpoint}".encode()).digest()
