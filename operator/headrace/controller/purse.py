"""What there is for all Models together: the namespaces' ResourceQuotas and the room of nodes, and who may have it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from headrace.cluster.client import Client
from headrace.cluster.errors import ClusterError
from headrace.cluster.resources import QUOTAS, Key
from headrace.controller.store import Object
from headrace.planning.pods import PodReport
from headrace.planning.quota import pod_cost, quota_room, scarce
from headrace.scaling.share import Claim, Grant, share
from headrace.scaling.types import Allowed

log = logging.getLogger(__name__)

EVERY_S = 5.0  # between two looks at a namespace's quotas
TIMEOUT_S = 0.9  # a slower answer is taken the next time
FORGET_S = 60.0  # quotas that could not be read for so long bind nobody: the API server still does
LAG_S = 30.0  # a quota's `used` follows the end of a pod late: the least of others' use within this counts


@dataclass(frozen=True)
class Wish:
    """What one Model would have, were it alone."""

    key: Key
    least: int
    current: int
    wanted: int
    weight: int
    deployment: Object
    pods: PodReport
    alive: int  # pods that count against a quota: all that have not ended

    @property
    def placed(self) -> int:
        """Replicas that have room already."""
        return max(0, self.current - self.pods.unschedulable)


@dataclass
class _Namespace:
    """The quotas of one namespace as last read, and what others than our Models used of them."""

    quotas: list[Object] = field(default_factory=list)
    read_at: float | None = None  # unix seconds
    asked_at: float | None = None
    refused: bool = False
    others: dict[str, deque[tuple[float, Decimal]]] = field(default_factory=dict)

    def due(self, now: float) -> bool:
        """True where it is time to look again, also after a clock that went back."""
        return self.asked_at is None or not 0 <= now - self.asked_at < EVERY_S


class Purse:
    """Keeps the quotas of namespaces and shares them out. A failure to read is logged once until it is over."""

    def __init__(self, client: Client):
        self._client = client
        self._known: dict[str, _Namespace] = {}

    def forget(self) -> None:
        """A follower keeps nothing."""
        self._known.clear()

    async def refresh(self, namespaces: Iterable[str], now: float) -> None:
        """Read the quotas that are due; what cannot be read stays as it was, for a while."""
        wanted = set(namespaces)
        self._known = {name: self._known.get(name) or _Namespace() for name in wanted}
        due = [name for name, held in self._known.items() if held.due(now)]
        await asyncio.gather(*(self._read(name, self._known[name], now) for name in due))

    async def _read(self, name: str, held: _Namespace, now: float) -> None:
        held.asked_at = now
        try:
            async with asyncio.timeout(TIMEOUT_S):
                held.quotas, _ = await self._client.list(QUOTAS, name)
        except (ClusterError, TimeoutError) as error:
            if not held.refused:
                log.warning("quotas were not read: %s", error or "no answer in time", extra={"namespace": name})
            held.refused = True
            if held.read_at is not None and not 0 <= now - held.read_at <= FORGET_S:
                held.quotas, held.read_at = [], None
            return
        held.read_at, held.refused = now, False

    def allow(self, wishes: Sequence[Wish], now: float) -> dict[Key, Allowed]:
        """The Models that may not have what they want, with the most that each may have and why."""
        if not any(held.quotas for held in self._known.values()) and not any(w.pods.unschedulable for w in wishes):
            return {}
        costs = {wish.key: _cost(wish) for wish in wishes}
        budget = {**self._quota_budget(wishes, costs, now), **_node_budget(wishes, costs)}
        if not budget:
            return {}
        claims = [
            Claim(
                key=wish.key,
                least=wish.least,
                placed=wish.placed,
                wanted=wish.wanted,
                weight=wish.weight,
                cost={name: each for name, each in _named(wish, costs[wish.key]).items() if name in budget and each},
            )
            for wish in wishes
        ]
        granted = share(claims, budget)
        return {
            wish.key: Allowed(most=granted[wish.key].replicas, detail=_why(wish, granted, wishes))
            for wish in wishes
            if granted[wish.key].replicas < wish.wanted
        }

    def _quota_budget(
        self, wishes: Sequence[Wish], costs: Mapping[Key, Mapping[str, Decimal]], now: float
    ) -> dict[str, Decimal]:
        """What the quotas leave for all Models of each namespace, and not less than what they have already: a quota
        that was lowered ends no replica."""
        budget: dict[str, Decimal] = {}
        for namespace, held in self._known.items():
            ours = [wish for wish in wishes if wish.key[0] == namespace]
            for name, (hard, used) in quota_room(held.quotas).items() if ours else ():
                mine = sum((costs[w.key].get(name, Decimal(0)) * w.alive for w in ours), Decimal(0))
                seen = held.others.setdefault(name, deque())
                seen.append((now, max(Decimal(0), used - mine)))
                while seen[0][0] < now - LAG_S or seen[0][0] > now:
                    seen.popleft()
                left = hard - min(amount for _, amount in seen)
                kept = sum((costs[w.key].get(name, Decimal(0)) * min(w.placed, w.wanted) for w in ours), Decimal(0))
                budget[_quota(namespace, name)] = max(left, kept)
        return budget


def _cost(wish: Wish) -> dict[str, Decimal]:
    try:
        return pod_cost((wish.deployment.get("spec") or {}).get("template") or {})
    except ValueError:
        return {}


def _node_budget(wishes: Sequence[Wish], costs: Mapping[Key, Mapping[str, Decimal]]) -> dict[str, Decimal]:
    """While pods of some nodes wait for a resource: no more of it than is asked for already, waiting pods included."""
    lacking = {_node(wish, name) for wish in wishes for name in scarce(wish.pods) if wish.pods.unschedulable}
    budget = dict.fromkeys(lacking, Decimal(0))
    for wish in wishes:
        for name, each in costs[wish.key].items():
            if _node(wish, name) in budget:
                budget[_node(wish, name)] += each * wish.current
    return budget


def _named(wish: Wish, cost: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """The cost under the names of both budgets."""
    quota = {_quota(wish.key[0], name): each for name, each in cost.items()}
    return quota | {_node(wish, name): each for name, each in cost.items()}


def _quota(namespace: str, name: str) -> str:
    return f"{name} of the quota of namespace {namespace}"


def _node(wish: Wish, name: str) -> str:
    """Nodes that are selected alike are one pool."""
    spec = ((wish.deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    which = f" with {json.dumps(selector, sort_keys=True)}" if selector else ""
    return f"{name.removeprefix('requests.')} of the nodes{which}"


def _why(wish: Wish, granted: Mapping[Key, Grant], wishes: Sequence[Wish]) -> str:
    """What is short, and who has how many of it."""
    lacking = granted[wish.key].lacking
    rivals = sorted((other for other in wishes if set(lacking) & _named(other, _cost(other)).keys()), key=_by_key)
    parts = ", ".join(f"{'/'.join(w.key)} {granted[w.key].replicas} of {w.wanted} wanted" for w in rivals[:8])
    more = f" and {len(rivals) - 8} more Models" if len(rivals) > 8 else ""
    return f"no more {' and '.join(lacking)}: by weighted shortfall {parts}{more}"


def _by_key(wish: Wish) -> Key:
    return wish.key
