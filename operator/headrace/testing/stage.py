"""An operator's scaling loop on a fake cluster with one fake gateway; time moves by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState, TenantState
from headrace.cluster.apply import Applier
from headrace.cluster.client import Object
from headrace.cluster.events import Recorder
from headrace.cluster.lease import Leader
from headrace.cluster.resources import CHILDREN, EVENTS, MODELS, PODS, SLOS, TENANTS
from headrace.controller.actor import Actor, Hands
from headrace.controller.children import World
from headrace.controller.gateways import Gateways
from headrace.controller.measures import Measures
from headrace.controller.models import Models
from headrace.controller.purse import Purse
from headrace.controller.queue import KeyedQueue
from headrace.controller.shared import Notes
from headrace.controller.store import Store
from headrace.controller.tenants import Tenants
from headrace.controller.work import Work
from headrace.planning.installation import Installation
from headrace.testing.clock import Clock
from headrace.testing.fake_cluster import FakeCluster
from headrace_wire.protocol import EngineState, ModelInfo

KEY = ("team", "demo")
START = 1_800_000_000.0


@dataclass
class Stage:
    """An operator's loop on a fake cluster and one fake gateway; time moves by hand."""

    fake: FakeCluster = field(default_factory=FakeCluster)
    clock: Clock = field(default_factory=lambda: Clock(START))
    store: Store = field(default_factory=Store)
    notes: Notes = field(default_factory=Notes)
    queued: int = 0
    oldest_s: float | None = None
    in_flight: int = 0
    idle_s: float | None = None  # since the last request; None: there was none
    answers: bool = True
    tenant_generation: int = 0
    also: dict[str, int] = field(default_factory=dict)  # requests that wait for other Models, by name

    def __post_init__(self) -> None:
        self.queue = KeyedQueue[Work]()
        self.leader = Leader(self.fake, "hr", "l", "me", clock=self.clock)
        applier = Applier(self.fake, "headrace.hr", self.leader.check)
        self.recorder = Recorder(self.fake, "me", self.leader.check, self.clock)
        installation = Installation(namespace="hr", engine_image="e")
        self.models = Models(
            self.store, self.notes, World(self.fake, applier, self.recorder), installation, self.moment
        )
        self.tenants = Tenants(self.store, self.notes, applier, self.moment)
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        gateways = Gateways(http, slices=None, port=0, url="http://gateway")
        purse, manager = Purse(self.fake), "headrace.hr"
        hands = Hands(self.leader, self.queue, self.recorder, self.tenants, Measures(), "hr", manager, purse)
        self.actor = Actor(self.store, self.notes, gateways, hands, self.clock)

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if not self.answers:
            return httpx.Response(503)
        return httpx.Response(200, content=msgspec.json.encode(self._state()))

    def _state(self) -> GatewayState:
        uptime = self.clock() - START + 3600
        own = ClassState(name="default", queued=self.queued, oldest_age_s=self.oldest_s, in_flight=self.in_flight)
        models = [self._model("demo", own)]
        for name, queued in self.also.items():
            waits = ClassState(name="default", queued=queued, oldest_age_s=5.0 if queued else None)
            models.append(self._model(name, waits))
        tenant = TenantState(namespace="team", name="t", observed_generation=self.tenant_generation)
        return GatewayState(gateway="g", started_at=START - 3600, uptime_s=uptime, models=models, tenants=[tenant])

    def _model(self, name: str, waits: ClassState) -> ModelState:
        pods = [obj for (plural, _), obj in self.fake.objects.items() if plural == "pods" and _of(obj) == name]
        engines = [self._engine(pod["metadata"]["name"]) for pod in pods if pod["status"]["conditions"]]
        return ModelState(
            namespace="team",
            name=name,
            observed_generation=1,
            classes=[waits],
            engines=engines,
            last_request_age_s=self.idle_s if name == "demo" else None,
        )

    def _engine(self, pod: str) -> EngineReport:
        info = ModelInfo(name="demo", max_sequences=64, max_batch_tokens=2048)
        state = EngineState(model=info, running=self.in_flight, total=100, free=100)
        return EngineReport(pod=pod, address="x", age_s=0.1, state=state)

    async def model(self, name: str = "demo", spec: Object | None = None, **scaling: Any) -> None:
        whole = {
            "source": {"uri": "builtin://demo"},
            "scaling": {"mode": "Auto", "maxReplicas": 4, **scaling},
            **(spec or {}),
        }
        await self.fake.create(MODELS, {"metadata": {"name": name, "namespace": "team"}, "spec": whole})
        await self.settle()

    async def pod(self, name: str, *, ready: bool = True, model: str = "demo") -> None:
        deployment = self.fake.objects["deployments", ("team", model)]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        at = "2026-01-01T00:00:05Z"
        conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": at}] if ready else []
        metadata = {"name": name, "namespace": "team", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        await self.fake.create(PODS, {"metadata": metadata, "status": {"conditions": conditions}})

    async def settle(self) -> None:
        """Renew the Lease, let the store see the world, reconcile what is due."""
        await self.leader.attempt()
        self._see()
        for _, key in [k for k in self.fake.objects if k[0] == "models"]:
            await self.models.reconcile(key)
        for _, key in [k for k in self.fake.objects if k[0] == "tenants"]:
            await self.tenants.reconcile(key)
        self._see()

    def _see(self) -> None:
        for resource in (MODELS, TENANTS, SLOS, *CHILDREN, PODS):
            items = [o for (plural, _), o in self.fake.objects.items() if plural == resource.plural]
            self.store.replace(resource, "team", items, str(self.fake._version))

    async def pass_time(self, seconds: int) -> None:
        """Tick each second; reconcile what the loop asks for."""
        for _ in range(seconds):
            self.clock.advance(1)
            if self.oldest_s is not None:
                self.oldest_s += 1
            if self.idle_s is not None:
                self.idle_s += 1
            await self.leader.attempt()
            await self.actor.tick()
            while len(self.queue):
                work = await self.queue.get()
                await self.settle()
                self.queue.done(work)

    @property
    def replicas(self) -> int:
        return self.replicas_of("demo")

    def replicas_of(self, model: str) -> int:
        return int(self.fake.objects["deployments", ("team", model)]["spec"]["replicas"])

    @property
    def status(self) -> Object:
        found: Object = self.fake.objects["models", KEY]["status"]
        return found

    def condition(self, kind: str) -> Object:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    async def scalings(self) -> list[Object]:
        """The Events of changes."""
        while not self.recorder._queue.empty():
            await self.recorder.write(*self.recorder._queue.get_nowait())
        items, _ = await self.fake.list(EVENTS, "team")
        return [event for event in items if event["action"] == "Scale"]


def _of(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["headrace.dev/model"])


def play(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Stage())

    asyncio.run(main())
