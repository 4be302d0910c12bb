"""Tells Kubernetes which pods are to go first, before there are fewer replicas. Best effort: nothing depends on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from headrace.api.gateway_state import EngineReport
from headrace.cluster.apply import Applier
from headrace.cluster.errors import ClusterError, NotLeader
from headrace.cluster.resources import PODS
from headrace.controller.store import Object, Store
from headrace.planning.pods import is_ready
from headrace.scaling.victims import victims, worth

log = logging.getLogger(__name__)

COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST = "-1"  # goes before all that have none, which count as 0
TIMEOUT_S = 2.0  # for all pods of a Model


class Farewell:
    """Marks pods for a ReplicaSet that becomes smaller."""

    def __init__(self, store: Store, applier: Applier):
        self._store, self._applier = store, applier

    async def mark(self, pods: Sequence[Object], engines: Iterable[EngineReport], fewer: int) -> None:
        """`fewer` of these pods will end: those that are not ready of themselves, then the marked. Marks of before go.

        Raises NotLeader; any other failure leaves the choice to Kubernetes.
        """
        states = {engine.pod: engine.state for engine in engines}
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and not _ended(pod)]
        ready = [pod for pod in alive if is_ready(pod)]
        names = [str(pod["metadata"]["name"]) for pod in ready]
        count = fewer - (len(alive) - len(ready))
        chosen = victims([worth(name, states.get(name)) for name in names], count)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for pod, name in zip(ready, names, strict=True):
                    await self._one(pod, FIRST if name in chosen else None)
        except NotLeader:
            raise
        except (ClusterError, TimeoutError) as error:
            log.warning("pods were not marked to go first: %s", error or "no answer in time")

    async def _one(self, pod: Object, cost: str | None) -> None:
        if (pod["metadata"].get("annotations") or {}).get(COST) == cost:
            return
        self._store.put(PODS, await self._applier.annotate(PODS, pod, {COST: cost}))


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
