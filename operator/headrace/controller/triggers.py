"""kopf as a source of triggers: `on.event` writes nothing to the objects; handlers only feed cache and queue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from headrace.cluster.connection import Connection
from headrace.cluster.resources import Resource
from headrace.controller.queue import KeyedQueue
from headrace.controller.store import Store
from headrace.controller.work import WATCHED, Work, concerned, selector_of


class Patience:
    """Pauses in seconds between the attempts of a watch, without an end.

    kopf ends the process when its pauses are used up; but an API server that is away, or a namespace whose rights are
    missing, must not end the service of the others. /healthz tells when no LIST ends any more.
    """

    def __iter__(self) -> Iterator[float]:
        """Growing, then 30."""
        return itertools.chain((1, 1, 2, 3, 5, 8, 13, 21), itertools.repeat(30.0))


class Triggers:
    """Events of the watched resources. `on_relist` is called where a LIST, not a change, brought an object."""

    def __init__(self, store: Store, queue: KeyedQueue[Work], on_relist: Callable[[], None]):
        self._store, self._queue, self._on_relist = store, queue, on_relist
        self.last_event_at: float | None = None  # monotonic seconds

    def take(self, resource: Resource, event: dict[str, Any]) -> None:
        """One event. A LIST after 410 tells nothing of what vanished, so it asks for a LIST of our own."""
        self.last_event_at = time.monotonic()
        kind, obj = event.get("type"), {"apiVersion": resource.api_version, "kind": resource.kind, **event["object"]}
        if kind is None:
            self._on_relist()
        if kind == "DELETED":
            self._store.remove(resource, obj)
            due = concerned(self._store, resource, obj, None)
        else:
            due = concerned(self._store, resource, self._store.put(resource, obj), obj)
        for work in due:
            self._queue.add(work)

    def registry(self, connection: Connection) -> kopf.OperatorRegistry:
        """Handlers for all watched resources, with our own credentials."""
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(
                server=connection.server,
                ca_data=connection.ca,
                insecure=not connection.verify,
                token=await connection.token(stale=True),
                certificate_data=connection.certificate,
                private_key_data=connection.key,
                proxy_url=connection.proxy,
            )

        kopf.on.login(registry=registry)(login)
        for resource in WATCHED:
            self._register(registry, resource)
        return registry

    def _register(self, registry: kopf.OperatorRegistry, resource: Resource) -> None:
        async def handler(event: Any, **_: Any) -> None:
            self.take(resource, dict(event))

        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=f"on-{resource.plural}")(
            handler
        )


def kopf_settings() -> kopf.OperatorSettings:
    """No finalizers, annotations, peering or posted logs: kopf only watches."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.error_backoffs = Patience()
    for resource in WATCHED:
        selector = selector_of(resource)
        if selector is not None:
            settings.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return settings
