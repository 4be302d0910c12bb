"""Reconcile Tenants, and the objects that Models refer to: status only, they have no children."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from headrace.api.conditions import Condition, ConditionType
from headrace.api.profile import ParallelismProfile, ProfileStatus
from headrace.api.slo import ServiceLevelObjective, SloSpec, SloStatus
from headrace.api.tenant import Tenant, TenantStatus, TenantUsage
from headrace.cluster.apply import Applier
from headrace.cluster.resources import PROFILES, SLOS, TENANTS, Key, Resource
from headrace.controller.children import Outcome
from headrace.controller.objects import models_in, references_of, status_object
from headrace.controller.parse import SpecError, parse, parse_tenant, status_of
from headrace.controller.shared import GatewayView, Notes
from headrace.controller.store import Object, Store
from headrace.planning.communication import nodes_per_replica
from headrace.planning.cures import cured
from headrace.planning.reasons import Why
from headrace.planning.status import stamped
from headrace.planning.tenants import TenantReport, TenantView, key_owners, tenant_status
from headrace.planning.workload import condition


class Tenants:
    """The Tenants of the watched namespaces."""

    def __init__(self, store: Store, notes: Notes, applier: Applier, now: Callable[[], datetime]):
        self._store, self._notes, self._applier, self._now = store, notes, applier, now
        self._usage_written: dict[Key, datetime] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """Bring one Tenant's status in line. Raises ClusterError."""
        raw = self._store.get(TENANTS, key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            self._usage_written.pop(key, None)
            return Outcome()
        previous, now = status_of(TenantStatus, raw), self._now()
        try:
            view = self._view(key, self._surroundings(), now)
            if view is None:
                return Outcome()
            status = tenant_status(view)
        except SpecError as error:
            status = TenantStatus(
                observed_generation=int(raw["metadata"].get("generation") or 0),
                usage=previous.usage,
                conditions=invalid_conditions(error),
            )
        if status.usage != previous.usage:
            self._usage_written[key] = now
        body = status.model_dump(by_alias=True, exclude_none=True, mode="json")
        body["conditions"] = stamped(status.conditions, previous.conditions, status.observed_generation, now)
        await self._applier.apply_status(TENANTS, status_object(TENANTS, raw, body))
        return Outcome()

    def changed(self) -> list[Key]:
        """The Tenants of which the gateways say something that the status does not show."""
        surroundings, now, found = self._surroundings(), self._now(), []
        for key in self._store.all(TENANTS):
            try:
                view = self._view(key, surroundings, now)
            except SpecError:
                continue
            if view is not None and _differs(tenant_status(view), view.tenant.status):
                found.append(key)
        return found

    def _surroundings(self) -> _Surroundings:
        tenants = []  # those that are being deleted are strangers to the gateways, too
        for key in self._store.all(TENANTS):
            with suppress(SpecError):
                tenant = self._store.parsed(TENANTS, key, parse_tenant)
                tenants += [tenant] if tenant is not None and tenant.metadata.deletion_timestamp is None else []
        models: dict[str, dict[str, SloSpec | None]] = {}
        for model in models_in(self._store):
            of_namespace = models.setdefault(model.metadata.namespace, {})
            of_namespace[model.metadata.name] = references_of(self._store, model).slo
        return _Surroundings(key_owners(tenants), models)

    def _view(self, key: Key, surroundings: _Surroundings, now: datetime) -> TenantView | None:
        """What a Tenant's status follows from; None where it is gone. Raises SpecError."""
        tenant = self._store.parsed(TENANTS, key, parse_tenant)
        if tenant is None:
            return None
        return TenantView(
            tenant=tenant,
            models=surroundings.models.get(key[0], {}),
            key_owners=surroundings.owners,
            reports=reports_of(tenant, self._notes.gateways),
            usage_written_at=self._usage_written.get(key),
            now=now,
        )


@dataclass(frozen=True)
class _Surroundings:
    """What all Tenants' statuses need: owners of keys by hash, and the objectives of Models by namespace and name."""

    owners: Mapping[str, Tenant]
    models: Mapping[str, Mapping[str, SloSpec | None]]


def _differs(fresh: TenantStatus, shown: TenantStatus) -> bool:
    return fresh.usage != shown.usage or list(map(_essence, fresh.conditions)) != list(map(_essence, shown.conditions))


def reports_of(tenant: Tenant, gateways: Sequence[GatewayView]) -> list[TenantReport]:
    """What each ready gateway says of a Tenant."""
    reports = []
    for gateway in gateways:
        if not gateway.ready:
            continue
        found = None
        for state in gateway.state.tenants if gateway.state is not None else ():
            if (state.namespace, state.name) == (tenant.metadata.namespace, tenant.metadata.name):
                found = state
        if found is None:
            reports.append(TenantReport(gateway.name, None))
            continue
        usage = TenantUsage(
            requests_last_minute=found.requests_last_minute,
            tokens_last_minute=found.tokens_last_minute,
            tokens_today=found.tokens_today,
            concurrent_requests=found.concurrent_requests,
        )
        reports.append(TenantReport(gateway.name, found.observed_generation, usage))
    return reports


class Referenced:
    """ServiceLevelObjectives and ParallelismProfiles: who uses them, and what follows from them."""

    def __init__(self, store: Store, applier: Applier, now: Callable[[], datetime]):
        self._store, self._applier, self._now = store, applier, now

    async def reconcile_slo(self, key: Key) -> Outcome:
        """Bring one objective's status in line. Raises ClusterError."""
        raw = self._store.get(SLOS, key)
        if raw is None:
            return Outcome()
        previous = status_of(SloStatus, raw)
        classes: list[str] = []
        try:
            spec = parse(ServiceLevelObjective, raw).spec
            classes = [c.name for c in sorted(spec.classes, key=lambda c: -c.priority)]
            conditions = [condition(ConditionType.READY, "True", Why.OBSERVED)]
        except SpecError as error:
            conditions = invalid_conditions(error)
        used_by = [
            m.metadata.name
            for m in models_in(self._store, key[0])
            if m.spec.service_level_ref is not None and m.spec.service_level_ref.name == key[1]
        ]
        status = SloStatus(classes=classes, used_by=used_by, conditions=conditions)
        await self._write(SLOS, raw, status, previous.conditions)
        return Outcome()

    async def reconcile_profile(self, key: Key) -> Outcome:
        """Bring one profile's status in line. Raises ClusterError."""
        raw = self._store.get(PROFILES, key)
        if raw is None:
            return Outcome()
        previous = status_of(ProfileStatus, raw)
        gpus = nodes = 0
        try:
            spec = parse(ParallelismProfile, raw).spec
            gpus, nodes = spec.ranks, nodes_per_replica(spec)
            conditions = [condition(ConditionType.READY, "True", Why.OBSERVED)]
        except SpecError as error:
            conditions = invalid_conditions(error)
        used_by = [
            m.metadata.name
            for m in models_in(self._store, key[0])
            if m.spec.parallelism_ref is not None and m.spec.parallelism_ref.name == key[1]
        ]
        status = ProfileStatus(gpus_per_replica=gpus, nodes_per_replica=nodes, used_by=used_by, conditions=conditions)
        await self._write(PROFILES, raw, status, previous.conditions)
        return Outcome()

    async def _write(
        self, resource: Resource, raw: Object, status: SloStatus | ProfileStatus, previous: Sequence[Condition]
    ) -> None:
        if raw["metadata"].get("deletionTimestamp"):
            return
        generation = int(raw["metadata"].get("generation") or 0)
        body = status.model_dump(by_alias=True, exclude_none=True, mode="json")
        body["observedGeneration"] = generation
        body["conditions"] = stamped(status.conditions, previous, generation, self._now())
        await self._applier.apply_status(resource, status_object(resource, raw, body))


def invalid_conditions(error: SpecError) -> list[Condition]:
    """Of an object whose spec cannot be read."""
    message = cured(Why.INVALID_SPEC.value, "; ".join(error.problems)[:3500])
    return [
        condition(ConditionType.READY, "False", Why.INVALID_SPEC, message),
        condition(ConditionType.ACCEPTED, "False", Why.INVALID_SPEC, message),
        condition(ConditionType.STALLED, "True", Why.INVALID_SPEC, message),
    ]


def _essence(one: Condition) -> tuple[str, str, str, str]:
    return one.type, one.status, one.reason, one.message
