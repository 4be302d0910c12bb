"""Leader election by a fenced Lease.

A leader may write until `RENEW_DEADLINE_S` after the moment *before* its last successful renewal was sent. Others take
over when they have seen no change of the Lease for `LEASE_S` by their own clock. A request lasts at most 4 s, less than
the difference, so no write of a former leader meets one of its successor.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from headrace.cluster.client import Client, Object
from headrace.cluster.errors import ClusterError, Conflict, NotFound, NotLeader
from headrace.cluster.resources import LEASES

log = logging.getLogger(__name__)

LEASE_S = 15
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0


class Leader:
    """One candidate. `check()` raises NotLeader unless writes are safe now; `run()` ends only when cancelled."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        on_start: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.identity = identity
        self.holder = ""  # who holds the Lease, as last seen
        self._client = client
        self._namespace, self._name = namespace, name
        self._on_start = on_start
        self._clock = clock
        self._fence = 0.0  # monotonic seconds until which writes are safe; 0 = not the leader
        self._leading = False
        self._seen: tuple[str, float] | None = None  # resourceVersion, and when it was first seen

    @property
    def leading(self) -> bool:
        """True while writes are safe."""
        return self._leading and self._clock() < self._fence

    def check(self) -> None:
        """Raise NotLeader unless writes are safe now."""
        if not self.leading:
            raise NotLeader(f"the Lease {self._namespace}/{self._name} is held by {self.holder or 'nobody'}")

    async def run(self) -> None:
        """Take and renew the Lease until cancelled."""
        while True:
            try:
                await self.attempt()
            except ClusterError as error:
                log.warning("lease was not renewed: %s", error, extra={"kind": "Lease", "object": self._name})
            if self._leading and not self.leading:
                self._leading = False
                log.warning("leadership was lost", extra={"kind": "Lease", "object": self._name})
            await asyncio.sleep(RETRY_S * random.uniform(0.8, 1.0))

    async def attempt(self) -> bool:
        """One try to take or renew. Raises ClusterError where the API server gave no answer."""
        sent = self._clock()
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            return await self._write({}, sent)
        spec = lease.get("spec") or {}
        self.holder = str(spec.get("holderIdentity") or "")
        if self.holder not in ("", self.identity) and not self._expired(lease):
            self._leading = False
            return False
        return await self._write(lease, sent)

    async def release(self) -> None:
        """Give the Lease up, so that another takes it at once. Call it after the last write."""
        if not self._leading:
            return
        self._leading, self._fence = False, 0.0
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._client.replace(LEASES, lease)
                log.info("leadership was released", extra={"kind": "Lease", "object": self._name})
        except ClusterError as error:
            log.warning("lease was not released: %s", error, extra={"kind": "Lease", "object": self._name})

    def _expired(self, lease: Object) -> bool:
        version = str(lease["metadata"].get("resourceVersion"))
        now = self._clock()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
            return False
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or LEASE_S)
        return now - self._seen[1] > duration

    async def _write(self, lease: Object, sent: float) -> bool:
        wanted = self._wanted(lease)
        try:
            if lease:
                await self._client.replace(LEASES, wanted)
            else:
                await self._client.create(LEASES, wanted)
        except Conflict:
            self._leading = False  # another was quicker
            return False
        began = not self._leading
        self.holder, self._leading, self._fence = self.identity, True, sent + RENEW_DEADLINE_S
        if began:
            log.info("leadership began", extra={"kind": "Lease", "object": self._name, "identity": self.identity})
            if self._on_start is not None:
                self._on_start()
        return True

    def _wanted(self, lease: Object) -> Object:
        old: dict[str, Any] = lease.get("spec") or {}
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": _now(),
            "acquireTime": old.get("acquireTime") or _now(),
            "leaseTransitions": int(old.get("leaseTransitions") or 0),
        }
        if lease and old.get("holderIdentity") != self.identity:
            spec |= {"acquireTime": _now(), "leaseTransitions": spec["leaseTransitions"] + 1}
        metadata = lease.get("metadata") or {"namespace": self._namespace, "name": self._name}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
