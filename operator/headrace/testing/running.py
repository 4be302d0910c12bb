"""A real operator in the test's own process, against a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.cluster.client import Client, Object, connect
from headrace.cluster.errors import NotFound
from headrace.cluster.resources import MODELS, PODS, Resource
from headrace.controller.main import run
from headrace.controller.settings import Settings
from headrace.planning.installation import Installation

POLL_S = 0.05


def settings_for(kubeconfig: str, namespace: str, **changes: Any) -> Settings:
    """Settings of an operator that lives in, and watches, one namespace."""
    base: dict[str, Any] = {
        "installation": Installation(namespace=namespace, engine_image="engine:test"),
        "namespaces": (namespace,),
        "identity": f"operator-{time.monotonic_ns()}",
        "host": "127.0.0.1",
        "port": 0,
        "kubeconfig": kubeconfig,
    }
    return Settings(**{**base, **changes})


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[asyncio.Event]:
    """Run an operator; the event stops it, as leaving the block does."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(settings, stop))
    try:
        yield stop
    finally:
        stop.set()
        await task


@dataclass(frozen=True)
class Bench:
    """What a test does and sees in its namespace."""

    client: Client
    namespace: str

    async def model(self, name: str = "demo", **spec: Any) -> Object:
        """Create a Model on the built-in demo model."""
        body = {"source": {"uri": "builtin://demo"}, **spec}
        return await self.create(MODELS, name, {"spec": body})

    async def create(self, resource: Resource, name: str, body: Object) -> Object:
        """Create an object of the namespace."""
        metadata = {**body.get("metadata", {}), "name": name, "namespace": self.namespace}
        return await self.client.create(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        )

    async def get(self, resource: Resource, name: str = "demo") -> Object | None:
        """An object, or None."""
        try:
            return await self.client.get(resource, self.namespace, name)
        except NotFound:
            return None

    async def patch(self, resource: Resource, name: str, body: Object, subresource: str | None = None) -> Object:
        """Merge-patch an object, or its status."""
        return await self.client.patch(resource.path(self.namespace, name, subresource), body)

    async def pod(self, name: str, revision: str, *, model: str = "demo", status: Object | None = None) -> Object:
        """A pod as a Deployment would make it, with a status as kubelet would write it."""
        labels = {
            "app.kubernetes.io/managed-by": "headrace",
            "headrace.dev/model": model,
            "headrace.dev/role": "serve",
            "headrace.dev/track": "stable",
            "headrace.dev/installation": self.namespace,
            "headrace.dev/revision": revision,
        }
        containers = [{"name": "engine", "image": "engine:test"}]
        await self.create(PODS, name, {"metadata": {"labels": labels}, "spec": {"containers": containers}})
        return await self.patch(PODS, name, {"status": status or {}}, "status")

    async def until(self, what: str, check: Callable[[], Awaitable[Any]], within_s: float = 20.0) -> Any:
        """The first true answer of `check`. Raises AssertionError with `what` after the deadline."""
        deadline = time.monotonic() + within_s
        while True:
            answer = await check()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {within_s} s: {what}")
            await asyncio.sleep(POLL_S)

    async def condition(
        self, resource: Resource, name: str, kind: str, status: str, reason: str | None = None
    ) -> Object:
        """Wait for a condition of the present generation."""
        seen: list[Object] = []

        async def check() -> Object | None:
            obj = await self.get(resource, name) or {}
            seen[:] = (obj.get("status") or {}).get("conditions") or []
            for condition in seen:
                if (condition["type"], condition["status"]) == (kind, status) and reason in (
                    None,
                    condition["reason"],
                ):
                    return condition if condition["observedGeneration"] == obj["metadata"]["generation"] else None
            return None

        try:
            found: Object = await self.until(f"{kind}={status}", check)
        except AssertionError as error:
            raise AssertionError(f"{name}: no condition {kind}={status} {reason or ''}, only {seen}") from error
        return found


@asynccontextmanager
async def bench(kubeconfig: str, namespace: str) -> AsyncIterator[Bench]:
    """A Bench with a client of its own."""
    async with await connect(kubeconfig) as client:
        yield Bench(client, namespace)
