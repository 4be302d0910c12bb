"""The status of a Tenant: are its references real, its keys its own, and do the gateways enforce it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headrace.api.conditions import Condition, ConditionType
from headrace.api.quantities import show_count
from headrace.api.slo import SloSpec
from headrace.api.tenant import Tenant, TenantSpec, TenantStatus, TenantUsage
from headrace.planning.live import MOVED, WRITE_EVERY_S
from headrace.planning.reasons import Why
from headrace.planning.workload import condition


@dataclass(frozen=True)
class TenantReport:
    """What one ready gateway says of a Tenant; `generation` None: it did not answer, or does not know it."""

    gateway: str
    generation: int | None
    usage: TenantUsage = field(default_factory=TenantUsage)


@dataclass(frozen=True, kw_only=True)
class TenantView:
    """All that a Tenant's status follows from."""

    tenant: Tenant
    models: Mapping[
        str, SloSpec | None
    ]  # objectives of the namespace's Models by name; None: the built-in, open to all
    key_owners: Mapping[str, Tenant]  # of the installation's Tenants, by the key's hash: see `key_owners`
    reports: Sequence[TenantReport]  # one for each ready gateway
    usage_written_at: datetime | None  # when `status.usage` was last changed
    now: datetime


def tenant_status(view: TenantView) -> TenantStatus:
    """The status to write; transition times are left to the caller."""
    accepted, enforced = _accepted(view), _enforced(view)
    return TenantStatus(
        observed_generation=view.tenant.metadata.generation,
        usage=usage_to_show(view),
        conditions=[_ready(view, accepted, enforced), accepted, enforced],
    )


def usage_to_show(view: TenantView) -> TenantUsage | None:
    """The previous figures, unless one moved enough and they are old enough."""
    previous = view.tenant.status.usage
    fresh = _sum([report.usage for report in view.reports if report.generation is not None])
    if not any(report.generation is not None for report in view.reports):
        return previous
    if previous is None:
        return fresh if fresh != TenantUsage() else None
    written = view.usage_written_at
    recent = written is not None and (view.now - written).total_seconds() < WRITE_EVERY_S
    return previous if recent or not _moved(previous, fresh) else fresh


def key_owners(tenants: Iterable[Tenant]) -> dict[str, Tenant]:
    """Who has each key, by its hash: of several Tenants the oldest."""
    owners: dict[str, Tenant] = {}
    for tenant in sorted(tenants, key=_age):
        for key in tenant.spec.api_keys:
            owners.setdefault(key.sha256, tenant)
    return owners


def _age(tenant: Tenant) -> tuple[str, str, str]:
    """Sorts older Tenants first; names decide between equals."""
    metadata = tenant.metadata
    return metadata.creation_timestamp or "", metadata.namespace, metadata.name


def _ready(view: TenantView, accepted: Condition, enforced: Condition) -> Condition:
    for part in (accepted, enforced):
        if part.status != "True":
            return part.model_copy(update={"type": ConditionType.READY.value})
    keys = view.tenant.spec.api_keys
    if keys and all(key.expired(view.now) for key in keys):
        names = ", ".join(f"{key.name!r} ({key.expires_at})" for key in keys)
        message = f"spec.apiKeys: every key has expired: {names}; add one, `headrace key new` makes it"
        return condition(ConditionType.READY, "False", Why.ALL_KEYS_EXPIRED, message)
    return condition(ConditionType.READY, "True", Why.READY, enforced.message)


def _accepted(view: TenantView) -> Condition:
    kind, spec = ConditionType.ACCEPTED, view.tenant.spec
    owners = {key.name: view.key_owners.get(key.sha256, view.tenant) for key in spec.api_keys}
    conflicts = {name: owner for name, owner in owners.items() if owner.metadata.uid != view.tenant.metadata.uid}
    if conflicts:
        names = ", ".join(f"{name!r} ({_whose(view.tenant, other)})" for name, other in sorted(conflicts.items()))
        message = f"spec.apiKeys: an older Tenant has the same key: {names}; replace it by one of `headrace key new`"
        return condition(kind, "False", Why.KEY_IN_USE, message)
    missing = [ref.name for ref in spec.models if ref.name not in view.models]
    if missing:
        names = ", ".join(missing)
        message = f"spec.models: no Model of this namespace is named {names}: create it, or take it out of the list"
        return condition(kind, "False", Why.MODEL_NOT_FOUND, message)
    unknown = _class_problem(view)
    if unknown is not None:
        return condition(kind, "False", Why.CLASS_UNKNOWN, unknown)
    return condition(kind, "True", Why.VALID, _size(spec))


def _size(spec: TenantSpec) -> str:
    return f"{show_count(len(spec.api_keys), 'key')}, {show_count(len(spec.models), 'model')}"


def _whose(tenant: Tenant, other: Tenant) -> str:
    """Names of other namespaces are not told."""
    same = other.metadata.namespace == tenant.metadata.namespace
    return f"Tenant {other.metadata.name}" if same else "in another namespace"


def _class_problem(view: TenantView) -> str | None:
    """A Model that shares no class with the Tenant, or a class that no Model has."""
    spec = view.tenant.spec
    objectives = {ref.name: view.models[ref.name] for ref in spec.models}
    known: set[str] = set()
    for model, slo in sorted(objectives.items()):
        names = ["default"] if slo is None else [c.name for c in slo.classes]
        known |= set(names)
        if slo is not None and not set(names) & set(spec.classes):
            mine = ", ".join(spec.classes) or "none"
            return (
                f"spec.classes: {mine}; Model {model} has {', '.join(names)}: none in common; add one of them, or take "
                "the Model out of spec.models"
            )
    strange = [name for name in spec.classes if name not in known]
    if objectives and strange:
        named = ", ".join(strange)
        return f"spec.classes: no Model of spec.models has the class {named}: correct it, or take it out of the list"
    return None


def _enforced(view: TenantView) -> Condition:
    kind, generation = ConditionType.ENFORCED, view.tenant.metadata.generation
    if not view.reports:
        return condition(
            kind, "Unknown", Why.NO_GATEWAY, "no gateway is ready: look at the pods of the Deployment headrace-gateway"
        )
    behind = [r.gateway for r in view.reports if r.generation is None or r.generation < generation]
    count = len(view.reports) - len(behind)
    message = f"{count} of {len(view.reports)} ready gateways enforce generation {generation}"
    if behind:
        words = f"{message}; not yet: {', '.join(sorted(behind)[:5])}; if that lasts, look at their logs"
        return condition(kind, "False", Why.GATEWAY_BEHIND, words)
    return condition(kind, "True", Why.ENFORCED, message)


def _sum(usages: Sequence[TenantUsage]) -> TenantUsage:
    total = TenantUsage()
    for usage in usages:
        total = TenantUsage(**{name: getattr(total, name) + getattr(usage, name) for name in TenantUsage.model_fields})
    return total


def _moved(before: TenantUsage, now: TenantUsage) -> bool:
    for name in TenantUsage.model_fields:
        old, new = getattr(before, name), getattr(now, name)
        if old != new and abs(new - old) >= MOVED * max(old, new):
            return True
    return False
