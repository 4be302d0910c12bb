"""Who else sets the replicas of a Deployment, in words."""

from __future__ import annotations

import logging

from headrace.cluster.client import Client
from headrace.cluster.errors import ClusterError
from headrace.cluster.resources import DEPLOYMENTS, HPAS, Key

log = logging.getLogger(__name__)

KUBERNETES = "kube-controller-manager"  # the field manager under which every HorizontalPodAutoscaler writes


class Rivals:
    """Names the writer behind a field manager."""

    def __init__(self, client: Client):
        self._client = client

    async def words(self, deployment: Key, manager: str | None) -> str:
        """`field manager 'x'`, or the HorizontalPodAutoscalers that target the Deployment; "" for no other manager."""
        if manager is None:
            return ""
        plain = f"field manager {manager!r}"
        found = await self._autoscalers(deployment) if manager == KUBERNETES else []
        if not found:
            return plain
        return f"HorizontalPodAutoscaler {', '.join(map(repr, found))} ({plain})"

    async def _autoscalers(self, deployment: Key) -> list[str]:
        namespace, name = deployment
        try:
            items, _ = await self._client.list(HPAS, namespace)
        except ClusterError as error:  # the rival is still known by its manager
            log.debug("autoscalers were not listed: %s", error)
            return []
        targets = {item["metadata"]["name"]: (item.get("spec") or {}).get("scaleTargetRef") or {} for item in items}
        return sorted(
            autoscaler
            for autoscaler, target in targets.items()
            if (target.get("kind"), target.get("name")) == (DEPLOYMENTS.kind, name)
        )
