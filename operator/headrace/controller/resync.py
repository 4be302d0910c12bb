"""Full LISTs that replace the cache: soon after a re-list of the watches, and from time to time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence

from headrace.cluster.client import Client
from headrace.cluster.errors import ApiError, ClusterError
from headrace.controller.queue import KeyedQueue
from headrace.controller.store import Store
from headrace.controller.work import WATCHED, Work, concerned, everything, selector_of

log = logging.getLogger(__name__)

EVERY_S = 300.0
REFUSED_S = 15.0  # until the next LIST while a namespace refuses us
SETTLE_S = 0.5  # requests within so long make one LIST


class Resync:
    """`soon()` asks for a LIST; `run()` ends only when cancelled."""

    def __init__(self, client: Client, namespaces: Sequence[str], store: Store, queue: KeyedQueue[Work]):
        self.listed = asyncio.Event()  # a whole LIST has succeeded once
        self.last_attempt_at: float | None = None  # monotonic seconds at which a LIST ended, well or not
        self._client, self._namespaces = client, tuple(namespaces)
        self._store, self._queue = store, queue
        self._asked = asyncio.Event()
        self._refused: frozenset[str] = frozenset()  # namespaces without rights, as last seen

    def soon(self) -> None:
        """Ask for a LIST; many requests make one."""
        self._asked.set()

    async def run(self) -> None:
        """LIST at the start, when asked, and every few minutes; after a failure again soon."""
        pause = 0.0
        while True:
            try:
                async with asyncio.timeout(pause):  # no task of its own: kopf would wait for that when it stops
                    await self._asked.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                await self.relist()
                pause = REFUSED_S if self._refused else EVERY_S * random.uniform(0.9, 1.0)
            except ClusterError as error:
                log.warning("cluster was not listed: %s", error)
                pause = 5.0
            self.last_attempt_at = time.monotonic()

    async def relist(self) -> None:
        """Replace the whole cache, and queue everything. Raises ClusterError; what was listed before it stays.

        A namespace in which we have no rights is left out, so that the others are served: unless there is no other.
        """
        changes, refused = 0, dict[str, ApiError]()
        for namespace in self._namespaces:
            try:
                changes += await self._list(namespace)
            except ApiError as error:
                if error.status != 403:
                    raise
                refused[namespace] = error
        self._tell(refused)
        if len(refused) == len(self._namespaces):
            raise next(iter(refused.values()))
        for work in everything(self._store):
            self._queue.add(work)
        self.listed.set()
        log.info("cluster was listed", extra={"changes": changes})

    async def _list(self, namespace: str) -> int:
        """Replace what is known of one namespace; gives the number of changes."""
        changes = 0
        for resource in WATCHED:
            items, listed_at = await self._client.list(resource, namespace, selector_of(resource))
            before = self._store.all(resource)
            for key in self._store.replace(resource, namespace, items, listed_at):
                changes += 1
                for work in concerned(self._store, resource, before.get(key), self._store.get(resource, key)):
                    self._queue.add(work)
        return changes

    def _tell(self, refused: Mapping[str, ApiError]) -> None:
        """Once per namespace and time that the rights are missing."""
        for namespace in refused.keys() - self._refused:
            log.warning("namespace is not served: %s", refused[namespace].message, extra={"namespace": namespace})
        self._refused = frozenset(refused)
