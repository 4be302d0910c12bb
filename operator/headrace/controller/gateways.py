"""Polls the gateways' states: what scaling decides from, and what Tenants' conditions say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from headrace.api.gateway_state import Answered, EngineReport, GatewayState, ModelState
from headrace.cluster.watch import Watch
from headrace.controller.shared import GatewayView

log = logging.getLogger(__name__)

TIMEOUT_S = 0.9
STATE_PATH = "/internal/v1/state"
STATE_BYTES = 16 * 2**20  # a larger answer is refused
LARGEST = 10**15  # of any count or age: what is larger cannot be, and no status could hold it


@dataclass(frozen=True)
class Target:
    """A gateway to poll."""

    name: str
    url: str
    ready: bool


def targets_of(slices: Iterator[dict[str, Any]], port: int) -> list[Target]:
    """The gateways that EndpointSlices name: ready ones, and those that still serve while they terminate."""
    found: dict[str, Target] = {}
    for piece in slices:
        for endpoint in piece.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            ready = conditions.get("ready") is not False
            if not ready and not conditions.get("serving"):
                continue
            for address in (endpoint.get("addresses") or ())[:1]:
                host = f"[{address}]" if ":" in address else address
                name = str((endpoint.get("targetRef") or {}).get("name") or address)
                found[name] = Target(name, f"http://{host}:{port}", ready)
    return sorted(found.values(), key=lambda target: target.name)


def checked(state: GatewayState) -> GatewayState:
    """A state with an impossible figure is as good as none. Raises ValueError.

    An engine's own figures, which an image of a user's choice may have made up, cost only that engine's report.
    """
    for what, value in _figures(state):
        if not _possible(value):
            raise ValueError(f"{what} is {str(value)[:40]}")
    return msgspec.structs.replace(state, models=[_honest(model) for model in state.models])


def _honest(model: ModelState) -> ModelState:
    if all(_possible(value) for engine in model.engines for _, value in _claims(engine)):
        return model
    engines = [
        engine
        if all(_possible(value) for _, value in _claims(engine))
        else msgspec.structs.replace(engine, state=None, age_s=None)
        for engine in model.engines
    ]
    return msgspec.structs.replace(model, engines=engines)


def _possible(value: float | None) -> bool:
    return value is None or 0 <= value <= LARGEST


def _figures(state: GatewayState) -> Iterator[tuple[str, float | None]]:
    yield "uptime_s", state.uptime_s
    yield "started_at", state.started_at
    for model in state.models:
        yield "last_request_age_s", model.last_request_age_s
        for c in model.classes:
            yield from _fields(c, ("queued", "queued_tokens", "oldest_age_s", "in_flight"))
            yield from _fields(c, ("offered", "admitted", "offered_tokens"))
            yield from _fields(c.answered, Answered.__struct_fields__)
            yield from c.outcomes.items()
        for engine in model.engines:
            yield from _fields(engine, ("age_s", "in_flight"))
    for tenant in state.tenants:
        yield from _fields(tenant, ("requests_last_minute", "tokens_last_minute", "tokens_today"))
        yield from _fields(tenant, ("concurrent_requests",))


def _claims(engine: EngineReport) -> Iterator[tuple[str, float | None]]:
    if engine.state is not None:
        yield from _fields(engine.state, ("total", "free", "evictable", "running", "waiting", "queued_tokens"))
        yield from _fields(engine.state, ("oldest_waiting_s", "prefill_rate", "startup_s"))
        yield from _fields(engine.state.model, ("max_tokens", "max_sequences", "max_batch_tokens"))


def _fields(struct: msgspec.Struct, names: Iterable[str]) -> Iterator[tuple[str, float | None]]:
    for name in names:
        yield name, getattr(struct, name)


class Gateways:
    """The gateways of one installation: those of `slices` (a Watch of their Service's EndpointSlices), or one URL."""

    def __init__(self, http: httpx.AsyncClient, *, slices: Watch | None, port: int, url: str | None = None):
        self._http, self._slices, self._port, self._url = http, slices, port, url
        self._silent: set[str] = set()

    def targets(self) -> list[Target]:
        """Who is to be polled now."""
        if self._url is not None:
            return [Target(self._url, self._url.rstrip("/"), True)]
        return targets_of(iter(self._slices.objects.values()), self._port) if self._slices is not None else []

    async def poll(self) -> list[GatewayView]:
        """Ask all at once; who does not answer within a second has no state."""
        return list(await asyncio.gather(*(self._ask(target) for target in self.targets())))

    async def _ask(self, target: Target) -> GatewayView:
        try:
            response = await self._http.get(target.url + STATE_PATH, timeout=TIMEOUT_S)
            response.raise_for_status()
            if len(response.content) > STATE_BYTES:
                raise ValueError(f"state of {len(response.content)} bytes")
            state = checked(msgspec.json.decode(response.content, type=GatewayState))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            if target.name not in self._silent:
                self._silent.add(target.name)
                log.warning("gateway did not answer: %r", error, extra={"kind": "Gateway", "object": target.name})
            return GatewayView(target.name, target.ready, None)
        self._silent.discard(target.name)
        return GatewayView(target.name, target.ready, state)
