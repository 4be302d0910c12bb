"""Fills the World from the cluster: Models, Tenants, objectives and the ready addresses of their pods.

Every change rebuilds the part that changed from the whole store, so nothing that is gone is ever remembered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from headrace.api.common import ApiType
from headrace.api.labels import ENGINE_PORT, SERVICE_NAME
from headrace.api.model import Model
from headrace.api.slo import ServiceLevelObjective
from headrace.api.tenant import Tenant
from headrace.cluster.client import Client
from headrace.cluster.resources import ENDPOINT_SLICES, MODELS, SLOS, TENANTS, Key, Resource
from headrace.cluster.watch import Watch
from headrace.gateway.world import Address, ObjectKey, World

logger = logging.getLogger(__name__)

Objects = Mapping[Key, dict[str, Any]]
T = TypeVar("T", bound=ApiType)


def parse_all(kind: type[T], objects: Objects) -> dict[ObjectKey, T]:
    """The objects of a kind; those being deleted, and those that cannot be read, are left out."""
    parsed: dict[ObjectKey, T] = {}
    for key, raw in objects.items():
        if raw.get("metadata", {}).get("deletionTimestamp"):
            continue
        try:
            parsed[key] = _parse(kind, raw)
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, e["loc"])) for e in error.errors()[:5])
            about = {"kind": kind.__name__, "namespace": key[0], "object": key[1], "fields": fields}
            logger.warning("an object was left out: it could not be read", extra=about)
    return parsed


def _parse(kind: type[T], raw: Mapping[str, Any]) -> T:
    """An object; a status that cannot be read, as a newer operator may write it, counts as none."""
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return kind.model_validate({name: part for name, part in raw.items() if name != "status"})


def addresses(slices: Iterable[dict[str, Any]]) -> dict[ObjectKey, tuple[Address, ...]]:
    """Ready addresses by the Service that bears a Model's name. A pod that terminates is not ready."""
    found: dict[ObjectKey, dict[str, Address]] = {}
    for item in slices:
        meta = item.get("metadata") or {}
        service = (meta.get("labels") or {}).get(SERVICE_NAME)
        if not service:
            continue
        port = _port(item.get("ports") or [])
        pods = found.setdefault((meta.get("namespace", "default"), service), {})
        for endpoint in item.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            if conditions.get("ready") is not True or conditions.get("terminating"):
                continue
            for host in (endpoint.get("addresses") or [])[:1]:
                pod = (endpoint.get("targetRef") or {}).get("name") or host
                pods[pod] = Address(pod, host, port)
    return {key: tuple(pods[pod] for pod in sorted(pods)) for key, pods in found.items()}


def _port(ports: Sequence[Mapping[str, Any]]) -> int:
    for port in ports:
        if port.get("name") == "http" and port.get("port"):
            return int(port["port"])
    return int(ports[0]["port"]) if ports and ports[0].get("port") else ENGINE_PORT


class ClusterFeed:
    """Keeps a World up to date by four watches."""

    def __init__(self, world: World, client: Client, namespaces: Sequence[str]):
        self._world = world
        self._client = client
        self._namespaces = namespaces
        self._stale: set[str] = set()  # plural names of kinds to rebuild
        self._scheduled = False
        self._models = self._watch(MODELS)
        self._tenants = self._watch(TENANTS)
        self._slos = self._watch(SLOS)
        self._slices = self._watch(ENDPOINT_SLICES, label_selector=SERVICE_NAME)

    def _watch(self, resource: Resource, label_selector: str | None = None) -> Watch:
        def changed(_: Key) -> None:
            self._stale.add(resource.plural)
            if not self._scheduled:  # a LIST reports each object: rebuild once
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._rebuild)

        return Watch(self._client, resource, self._namespaces, label_selector, changed)

    async def run(self) -> None:
        """Watch until cancelled."""
        watches = (self._models, self._tenants, self._slos, self._slices)
        async with asyncio.TaskGroup() as group:
            for watch in watches:
                group.create_task(watch.run())
            for watch in watches:
                await watch.synced.wait()
            self._stale |= {watch.resource.plural for watch in watches}
            self._world.synced = True
            self._rebuild()
            counts = {"models": len(self._world.models), "tenants": len(self._world.tenants)}
            logger.info("cluster was read", extra=counts)

    def _rebuild(self) -> None:
        stale, self._stale, self._scheduled = self._stale, set(), False
        world = self._world
        if MODELS.plural in stale:
            world.models = parse_all(Model, self._models.objects)
        if TENANTS.plural in stale:
            world.set_tenants(parse_all(Tenant, self._tenants.objects))
        if SLOS.plural in stale:
            world.slos = parse_all(ServiceLevelObjective, self._slos.objects)
        if ENDPOINT_SLICES.plural in stale:
            world.endpoints = addresses(self._slices.objects.values())
        if stale:
            world.notify()
