"""Polls the gateways' states: what scaling decides from, and what Tenants' conditions say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from headrace.api.gateway_state import GatewayState
from headrace.cluster.watch import Watch
from headrace.controller.shared import GatewayView

log = logging.getLogger(__name__)

TIMEOUT_S = 0.9
STATE_PATH = "/internal/v1/state"
STATE_BYTES = 16 * 2**20  # a larger answer is refused


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
            state = msgspec.json.decode(response.content, type=GatewayState)
        except (httpx.HTTPError, OSError, ValueError) as error:
            if target.name not in self._silent:
                self._silent.add(target.name)
                log.warning("gateway did not answer: %r", error, extra={"kind": "Gateway", "object": target.name})
            return GatewayView(target.name, target.ready, None)
        self._silent.discard(target.name)
        return GatewayView(target.name, target.ready, state)
