"""What a pod takes, and what a namespace's ResourceQuotas leave, by the names that quotas use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from headrace.api.quantities import resource_amount
from headrace.planning.pods import PodReport
from headrace.planning.reasons import Why

Object = Mapping[str, Any]
PODS = "pods"
_BARE = ("cpu", "memory")  # quotas name their requests without `requests.`, too
_HARMLESS = {"NotBestEffort", "NotTerminating"}  # scopes that hold for every engine's pod
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9._/-]*[A-Za-z0-9])")  # as the scheduler says it


def pod_cost(template: Object) -> dict[str, Decimal]:
    """What one pod of a template counts for: `pods`, `requests.NAME` and `limits.NAME`. Raises ValueError."""
    spec = template.get("spec") or {}
    cost = {PODS: Decimal(1)}
    for kind in ("requests", "limits"):
        for name, amount in _effective(spec, kind).items():
            cost[f"{kind}.{name}"] = amount
    return cost


def _effective(spec: Object, kind: str) -> dict[str, Decimal]:
    """The sum over the containers, or what an init container takes where that is more."""
    total: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        for name, amount in _resources(container, kind):
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers") or ():
        for name, amount in _resources(container, kind):
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _resources(container: Object, kind: str) -> Iterator[tuple[str, Decimal]]:
    """A request that is not given is the limit."""
    given = container.get("resources") or {}
    limits = given.get("limits") or {}
    amounts = limits if kind == "limits" else {**limits, **(given.get("requests") or {})}
    for name, amount in amounts.items():
        yield name, resource_amount(amount)


def quota_room(quotas: Iterable[Object]) -> dict[str, tuple[Decimal, Decimal]]:
    """(hard, used) of each resource, of the quota that leaves least; names as `pod_cost` has them.

    Quotas of scopes that may not hold for an engine's pod are left out, as are figures that cannot be read.
    """
    found: dict[str, tuple[Decimal, Decimal]] = {}
    for quota in quotas:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if spec.get("scopeSelector") or set(spec.get("scopes") or ()) - _HARMLESS:
            continue
        used = status.get("used") or {}
        for given, hard in (status.get("hard") or {}).items():
            name = _name(given)
            try:
                room = resource_amount(hard), resource_amount(used[given])
            except (KeyError, ValueError):
                continue
            if name not in found or room[0] - room[1] < found[name][0] - found[name][1]:
                found[name] = room
    return found


def _name(given: str) -> str:
    if given in _BARE:
        return f"requests.{given}"
    return PODS if given == "count/pods" else given


def scarce(pods: PodReport) -> frozenset[str]:
    """The resources for want of which pods have found no node, as `pod_cost` names them."""
    messages = (p.message for p in pods.problems if p.reason == Why.UNSCHEDULABLE.value)
    return frozenset(f"requests.{name}" for message in messages for name in _INSUFFICIENT.findall(message))
