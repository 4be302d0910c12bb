"""The pods of one Model in the simulator: wanted, pending, loading, ready, draining, gone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.bench.profile import Profile
from headrace.bench.replica import Replica


@dataclass(frozen=True)
class Pods:
    """How pods behave. Times in seconds."""

    cold_start_s: float = 60.0  # mean, creation to ready
    cold_start_cv: float = 0.1  # log-normal
    room: int = 1000  # pods for which the cluster has nodes
    stuck_share: float = 0.0  # of the starts that take `stuck_s` instead
    stuck_s: float = 900.0
    failures_per_hour: float = 0.0  # of each ready replica
    drain_s: float = 300.0  # a draining replica is ended after so long


class Fleet:
    """Pods by state. Replica-seconds count from creation to the end, those without a node apart."""

    def __init__(self, pods: Pods, profile: Profile, slots: int, cached: bool, seed: int):
        self.pods, self.profile, self.slots, self.cached = pods, profile, slots, cached
        self._random = np.random.default_rng(seed)
        self._serial = 0
        self._since = 0.0  # up to which replica-seconds are counted
        self.wanted = 0
        self.unplaced = 0  # pods without a node
        self.loading: dict[int, Replica] = {}
        self.ready: dict[int, Replica] = {}
        self.draining: dict[int, Replica] = {}
        self.replica_s = 0.0
        self.changed_at = -math.inf
        self.actions = 0
        self.cold_starts: list[float] = []

    def count(self, now: float) -> None:
        """Count replica-seconds up to now."""
        placed = len(self.loading) + len(self.ready) + len(self.draining)
        self.replica_s += placed * (now - self._since)
        self._since = now

    def scale(self, wanted: int, now: float) -> tuple[list[Replica], list[Replica]]:
        """Set the number of replicas; the pods that began to load, and the ready ones that drain from now on."""
        self.count(now)
        if wanted != self.wanted:
            self.actions += 1
            self.changed_at = now
        self.wanted = wanted
        return self._fill(now), self._shrink(now)

    def start(self, count: int, now: float) -> list[Replica]:
        """Replicas that are ready at once, as at the beginning."""
        self.wanted = count
        begun = [self._create(now) for _ in range(count)]
        for replica in begun:
            self.loading[replica.serial] = replica
            self.became_ready(replica, now, known=False)
        return begun

    def became_ready(self, replica: Replica, now: float, known: bool = True) -> bool:
        """A pod has loaded; False if it is no longer wanted."""
        if self.loading.pop(replica.serial, None) is None:
            return False
        self.ready[replica.serial] = replica
        replica.ready_at = now
        if known:
            self.cold_starts.append(now - replica.born)
        return True

    def failed(self, replica: Replica, now: float) -> list[Replica]:
        """A pod is lost; those that begin to load in its place."""
        self.count(now)
        self.ready.pop(replica.serial, None)
        self.draining.pop(replica.serial, None)
        return self._fill(now)

    def drained(self, replica: Replica, now: float) -> list[Replica]:
        """A draining pod has ended; those that begin to load on its node."""
        self.count(now)
        self.draining.pop(replica.serial, None)
        return self._fill(now)

    def cold_start(self) -> float:
        """Seconds that one more start takes."""
        if self._random.random() < self.pods.stuck_share:
            return self.pods.stuck_s
        spread = math.sqrt(math.log1p(self.pods.cold_start_cv**2))
        return float(self.pods.cold_start_s * math.exp(self._random.normal(-spread * spread / 2, spread)))

    def lifetime(self) -> float:
        """Seconds until a ready replica fails; infinite if none does."""
        rate = self.pods.failures_per_hour
        return float(self._random.exponential(3600.0 / rate)) if rate > 0 else math.inf

    def _create(self, now: float) -> Replica:
        self._serial += 1
        return Replica(self._serial, self.profile, now, self.slots, self.cached)

    def _fill(self, now: float) -> list[Replica]:
        begun = []
        lacking = self.wanted - len(self.ready) - len(self.loading)
        room = self.pods.room - len(self.ready) - len(self.loading) - len(self.draining)
        for _ in range(max(0, min(lacking, room))):
            replica = self._create(now)
            self.loading[replica.serial] = replica
            begun.append(replica)
        self.unplaced = max(0, lacking - len(begun))
        return begun

    def _shrink(self, now: float) -> list[Replica]:
        """The youngest pending first, then the ready one with the least to lose: fewest KV tokens held."""
        while len(self.loading) + len(self.ready) > self.wanted and self.loading:
            self.loading.popitem()
        ended = []
        while len(self.ready) > self.wanted:
            victim = min(self.ready.values(), key=lambda r: (r.held + r.queued, -r.serial))
            del self.ready[victim.serial]
            victim.draining = True
            if victim.requests:
                self.draining[victim.serial] = victim
            ended.append(victim)
        return ended
