"""The workers that take keys from the queue and reconcile them, on the leader only."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from headrace.cluster.errors import ClusterError, NotLeader
from headrace.cluster.lease import Leader
from headrace.cluster.resources import Key, Resource
from headrace.controller.children import Outcome
from headrace.controller.measures import Measures
from headrace.controller.queue import KeyedQueue
from headrace.controller.work import Work

log = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[Outcome]]


class Workers:
    """Runs the reconcile of a key's resource. A follower drops keys: leadership begins with all of them."""

    def __init__(
        self,
        queue: KeyedQueue[Work],
        leader: Leader,
        reconciles: Mapping[Resource, Reconcile],
        measures: Measures,
    ):
        self.last_success_at: float | None = None  # monotonic seconds
        self._queue, self._leader, self._reconciles, self._measures = queue, leader, reconciles, measures

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            work = await self._queue.get()
            try:
                if self._leader.leading:
                    await self._one(work)
            finally:
                self._queue.done(work)

    async def _one(self, work: Work) -> None:
        resource, (namespace, name) = work
        fields = {"kind": resource.kind, "namespace": namespace, "object": name}
        began = time.monotonic()
        try:
            outcome = await self._reconciles[resource]((namespace, name))
        except NotLeader:
            return
        except ClusterError as error:
            outcome = Outcome(error=error)
        except Exception as error:  # a defect in one object's reconcile must not stop the others'
            log.exception("reconcile failed", extra=fields)
            outcome = Outcome(error=error)
        self._measures.reconciled(resource.kind, time.monotonic() - began, ok=outcome.error is None)
        if outcome.error is not None:
            pause = self._queue.retry(work)
            log.warning("reconcile is tried again: %s", outcome.error, extra={**fields, "in_s": round(pause, 2)})
            return
        self._queue.forget(work)
        self.last_success_at = time.monotonic()
        if outcome.again_in_s is not None:
            self._queue.add_after(work, outcome.again_in_s)
