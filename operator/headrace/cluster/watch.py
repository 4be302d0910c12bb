"""A store of objects that LIST fills and WATCH keeps up to date.

A LIST replaces what the store holds, so nothing that vanished while we were cut off lives on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.cluster.client import Client, Object
from headrace.cluster.errors import ApiError, ClusterError, Unreachable
from headrace.cluster.resources import Key, Resource, key_of

log = logging.getLogger(__name__)

SERVER_TIMEOUT_S = 60  # the server ends a watch after so long, with a bookmark or without; we go on from there
INACTIVITY_S = 75.0  # so a watch that is silent for longer is dead
SETTLED_S = 5.0  # a watch that the server ends after so long was well
BACKOFF_S = (0.25, 20.0)  # first and longest pause between failures


@dataclass
class _Feed:
    """One LIST+WATCH: a namespace, or all of them."""

    namespace: str | None
    keys: set[Key] = field(default_factory=set)
    version: str = ""  # resourceVersion to go on from; "" = list first
    listed: bool = False
    fresh_at: float | None = None  # monotonic seconds of the last word from the server
    failures: int = 0


class Watch:
    """The objects of one resource in the given namespaces (None or empty: all), by (namespace, name).

    `on_change(key)` is called in the event loop after the store has changed for that key; it must not block.
    Objects are shared: treat them as read-only. `run()` ends only when cancelled.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespaces: Sequence[str] | None = None,
        label_selector: str | None = None,
        on_change: Callable[[Key], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.resource = resource
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._selector = label_selector
        self._on_change = on_change
        self._clock = clock
        self._feeds = [_Feed(namespace) for namespace in dict.fromkeys(namespaces or ())] or [_Feed(None)]

    @property
    def fresh_at(self) -> float | None:
        """Monotonic seconds at which the quietest feed last heard from the server; None before all were listed."""
        times = [feed.fresh_at for feed in self._feeds]
        return None if any(t is None for t in times) else min(t for t in times if t is not None)

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            for feed in self._feeds:
                group.create_task(self._follow(feed))

    async def _follow(self, feed: _Feed) -> None:
        while True:
            try:
                if not feed.version:
                    await self._list(feed)
                await self._watch(feed)
            except ApiError as error:
                feed.version = ""
                await self._pause(feed, error)
            except ClusterError as error:
                await self._pause(feed, error)

    async def _pause(self, feed: _Feed, error: ClusterError) -> None:
        if isinstance(error, ApiError) and error.gone and feed.failures == 0:
            feed.failures = 1
            return  # the version was too old: list at once
        first, longest = BACKOFF_S
        pause = min(longest, first * 2 ** min(feed.failures, 10)) * random.uniform(0.5, 1.0)
        level = logging.WARNING if feed.failures in (0, 5) or feed.failures % 50 == 0 else logging.DEBUG
        feed.failures += 1
        log.log(
            level,
            "watch was interrupted: %s",
            error,
            extra={"kind": self.resource.kind, "namespace": feed.namespace or "*", "failures": feed.failures},
        )
        await asyncio.sleep(pause)

    async def _list(self, feed: _Feed) -> None:
        items, version = await self._client.list(self.resource, feed.namespace, self._selector)
        found = {key_of(item): item for item in items}
        changed = feed.keys - found.keys()
        for key in changed:
            self.objects.pop(key, None)
        for key, item in found.items():
            if _version(self.objects.get(key)) != _version(item) or key not in feed.keys:
                self.objects[key] = item
                changed.add(key)
        feed.keys, feed.version, feed.listed = set(found), version, True
        self._heard(feed)
        if all(each.listed for each in self._feeds):
            self.synced.set()
        self._tell(changed)

    async def _watch(self, feed: _Feed) -> None:
        params = {
            "resourceVersion": feed.version,
            "timeoutSeconds": str(int(SERVER_TIMEOUT_S * random.uniform(0.8, 1.0))),
        }
        if self._selector:
            params["labelSelector"] = self._selector
        path, began = self.resource.path(feed.namespace), self._clock()
        async for event in self._client.watch(path, params, inactivity_s=INACTIVITY_S):
            self._take(feed, event)
        if self._clock() - began >= SETTLED_S:  # its time was up: where nothing changed it ends without a word
            self._heard(feed)
        elif feed.failures:  # it ended at once, without a word, and not for the first time: do not spin
            raise Unreachable(f"watch {path} ended at once")
        else:
            feed.failures = 1

    def _take(self, feed: _Feed, event: Object) -> None:
        kind, obj = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiError(int(obj.get("code") or 500), obj)
        self._heard(feed)
        feed.version = str((obj.get("metadata") or {}).get("resourceVersion") or feed.version)
        if kind == "BOOKMARK" or kind is None:
            return
        key = key_of(obj)
        if kind == "DELETED":
            feed.keys.discard(key)
            if self.objects.pop(key, None) is None:
                return
        else:
            feed.keys.add(key)
            self.objects[key] = obj
        self._tell([key])

    def _heard(self, feed: _Feed) -> None:
        feed.fresh_at = self._clock()
        feed.failures = 0

    def _tell(self, keys: set[Key] | list[Key]) -> None:
        if self._on_change is not None:
            for key in sorted(keys):
                self._on_change(key)


def _version(obj: Object | None) -> str | None:
    return None if obj is None else str((obj.get("metadata") or {}).get("resourceVersion"))
