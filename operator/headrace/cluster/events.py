"""Kubernetes Events (events.k8s.io/v1), one series per message instead of one object per occurrence."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from headrace.cluster.client import Client, Object
from headrace.cluster.errors import ClusterError, NotFound, NotLeader
from headrace.cluster.resources import EVENTS, Resource

log = logging.getLogger(__name__)

CONTROLLER = "headrace.dev/operator"
SERIES_WINDOW_S = 360.0  # the same message within so long of its last occurrence joins its series
QUEUE = 1000  # Events that wait to be written; further ones are dropped and logged
NOTE_BYTES = 1024  # the API's limit


@dataclass(frozen=True)
class Note:
    """What happened to an object."""

    type: Literal["Normal", "Warning"]
    reason: str  # CamelCase
    action: str  # CamelCase
    message: str


@dataclass
class _Series:
    name: str
    count: int
    last: float  # monotonic seconds


class Recorder:
    """Writes Events in the background; the failure to write one is logged and never raised."""

    def __init__(
        self,
        client: Client,
        instance: str,
        guard: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._client = client
        self._instance = instance
        self._guard = guard
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Resource, Object, Note]] = asyncio.Queue(QUEUE)
        self._series: dict[tuple[str, Note], _Series] = {}

    def record(self, resource: Resource, obj: Object, note: Note) -> None:
        """Note something about `obj` (only its metadata is read). Returns at once."""
        try:
            self._queue.put_nowait((resource, obj, note))
        except asyncio.QueueFull:
            log.warning("event was dropped: %s", note.message, extra={"kind": resource.kind, "reason": note.reason})

    async def run(self) -> None:
        """Write what is recorded until cancelled."""
        while True:
            resource, obj, note = await self._queue.get()
            try:
                self._guard()
                await self.write(resource, obj, note)
            except NotLeader:
                log.debug("event was not written: not the leader", extra={"reason": note.reason})
            except ClusterError as error:
                log.warning("event was not written: %s", error, extra={"kind": resource.kind, "reason": note.reason})

    async def write(self, resource: Resource, obj: Object, note: Note) -> None:
        """Write one Event, or lengthen its series."""
        now = self._clock()
        self._series = {key: s for key, s in self._series.items() if now - s.last < SERIES_WINDOW_S}
        metadata = obj["metadata"]
        key = (str(metadata.get("uid", "")), note)
        series = self._series.get(key)
        if series is not None:
            series.count, series.last = series.count + 1, now
            body = {"series": {"count": series.count, "lastObservedTime": _now()}}
            try:
                await self._client.patch(EVENTS.path(metadata["namespace"], series.name), body)
                return
            except NotFound:
                pass  # it has expired: begin a new one
        name = f"{metadata['name'][:200]}.{secrets.token_hex(6)}"
        await self._client.create(EVENTS, self._event(name, resource, metadata, note))
        self._series[key] = _Series(name, 1, now)

    def _event(self, name: str, resource: Resource, metadata: Object, note: Note) -> Object:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": metadata["namespace"], "name": name},
            "eventTime": _now(),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "type": note.type,
            "reason": note.reason,
            "action": note.action,
            "note": note.message.encode()[:NOTE_BYTES].decode("utf-8", "ignore"),
            "regarding": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
