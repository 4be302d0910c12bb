"""A gateway on loopback without a cluster: a World made by hand, and FakeEngines as its endpoints.

async with serving(world) as gateway:
    await client.post(gateway.url + "/v1/chat/completions", ...)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from headrace.api.gateway_state import ClassState, GatewayState, ModelState
from headrace.api.model import Model
from headrace.api.slo import ServiceLevelObjective
from headrace.api.tenant import Tenant
from headrace.gateway.main import Ports, Service
from headrace.gateway.settings import Settings
from headrace.gateway.world import Address, World
from headrace.testing.fake_engine import FakeEngine

NAMESPACE = "team-a"
CLASSES = (
    {"name": "interactive", "priority": 100, "ttft": "20s", "tpot": "5s", "maxQueueAge": "250ms"},
    {"name": "batch", "priority": 10, "ttft": "60s", "tpot": "5s", "maxQueueAge": "30s"},
)


def make_model(name: str = "m", **spec: Any) -> Model:
    """A Model with the objective `chat`."""
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1}
    full = {"source": {"uri": "builtin://demo"}, "serviceLevelRef": {"name": "chat"}, **spec}
    return Model.model_validate({"metadata": meta, "spec": full})


def make_tenant(name: str = "search", key: str = "key", models: Iterable[str] = ("m",), **spec: Any) -> Tenant:
    """A Tenant whose one key is `key`."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    full = {
        "apiKeys": [{"name": "k", "sha256": digest}],
        "models": [{"name": m} for m in models],
        "classes": ["interactive", "batch"],
        **spec,
    }
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1}
    return Tenant.model_validate({"metadata": meta, "spec": full})


def make_world(
    models: Iterable[Model] = (), tenants: Iterable[Tenant] = (), classes: Iterable[dict[str, Any]] = CLASSES
) -> World:
    """A synced World; without arguments one Model `m` and one Tenant."""
    slo = ServiceLevelObjective.model_validate(
        {"metadata": {"name": "chat", "namespace": NAMESPACE}, "spec": {"classes": list(classes)}}
    )
    world = World(synced=True, slos={(NAMESPACE, "chat"): slo})
    world.models = {(NAMESPACE, m.metadata.name): m for m in list(models) or [make_model()]}
    world.set_tenants({(NAMESPACE, t.metadata.name): t for t in list(tenants) or [make_tenant()]})
    return world


def set_engines(world: World, *engines: FakeEngine, model: str = "m") -> None:
    """Make these the ready endpoints of a Model."""
    ready = tuple(Address(engine.settings.instance, "127.0.0.1", engine.port) for engine in engines)
    world.endpoints = {**world.endpoints, (NAMESPACE, model): ready}
    world.notify()


async def eventually(check: Callable[[], Awaitable[bool]], within_s: float = 5.0) -> None:
    """Returns once the check holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not await check():  # noqa: ASYNC110  the world gives no event for it
            await asyncio.sleep(0.02)


class FakeGateway:
    """A running gateway and what tests ask of it."""

    def __init__(self, service: Service):
        self.service = service
        self.world = service.world
        self.url = f"http://127.0.0.1:{service.port}"
        self.state_url = f"http://127.0.0.1:{service.state_port}"
        self.openai_url = self.url + "/v1"
        self.http = httpx.AsyncClient(verify=False, timeout=20)  # plain HTTP: no certificates to read

    async def state(self) -> GatewayState:
        """What the operator would see."""
        answer = await self.http.get(self.state_url + "/internal/v1/state")
        return msgspec.json.decode(answer.content, type=GatewayState)

    async def idle(self) -> bool:
        """Nothing is queued, in flight or reserved, and no engine has a request of ours."""
        state = await self.state()
        rows = [c for m in state.models for c in m.classes]
        engines = [e for m in state.models for e in m.engines]
        return not (
            any(row.queued or row.in_flight or row.queued_tokens for row in rows)
            or any(tenant.concurrent_requests for tenant in state.tenants)
            or any(engine.in_flight for engine in engines)
        )

    async def model(self, name: str = "m") -> ModelState:
        """One Model of the state."""
        return next(m for m in (await self.state()).models if m.name == name)

    async def service_class(self, name: str = "interactive", model: str = "m") -> ClassState:
        """One class of the state."""
        return next(c for c in (await self.model(model)).classes if c.name == name)


@asynccontextmanager
async def serving(world: World, **settings: Any) -> AsyncIterator[FakeGateway]:
    """A gateway on free ports; keyword arguments are its Settings."""
    defaults: dict[str, Any] = {"gateway": "gw-0", "drain_s": 1.0, "linger_s": 0.0}
    service = Service(world, Settings(**{**defaults, **settings}), Ports("127.0.0.1", 0, 0))
    await service.start()
    gateway = FakeGateway(service)
    try:
        yield gateway
    finally:
        await gateway.http.aclose()
        await service.stop()
