"""What the gateway knows of the cluster: parsed objects by (namespace, name), replaced whole when they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.api.conditions import ConditionType
from headrace.api.model import Model
from headrace.api.slo import BUILTIN_SLO, ServiceClass, ServiceLevelObjective
from headrace.api.tenant import Tenant
from headrace.gateway.identity import KeyIndex

ObjectKey = tuple[str, str]  # namespace, name


@dataclass(frozen=True)
class Address:
    """A ready serving pod. Pods that are not ready or terminate are absent from the world."""

    pod: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """host:port, with brackets around an IPv6 host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass
class World:
    """The objects in force. Owned by the event loop; `notify` after each change."""

    models: Mapping[ObjectKey, Model] = field(default_factory=dict)
    tenants: Mapping[ObjectKey, Tenant] = field(default_factory=dict)
    slos: Mapping[ObjectKey, ServiceLevelObjective] = field(default_factory=dict)
    endpoints: Mapping[ObjectKey, tuple[Address, ...]] = field(default_factory=dict)  # by Model
    keys: KeyIndex = field(default_factory=lambda: KeyIndex([]))
    synced: bool = False  # every watch has listed once
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def set_tenants(self, tenants: Mapping[ObjectKey, Tenant]) -> None:
        """Replace the tenants and the index of their keys."""
        self.tenants = tenants
        self.keys = KeyIndex(tenants.values())

    def notify(self) -> None:
        """Tell every listener that something changed."""
        for listener in self.listeners:
            listener()

    def classes_of(self, model: Model) -> list[ServiceClass]:
        """The classes of a Model's objective; the built-in one if it names none or one that does not exist."""
        slo = self._slo_of(model)
        return list((BUILTIN_SLO if slo is None else slo.spec).classes)

    def is_open(self, model: Model) -> bool:
        """True where the built-in objective holds: its class is open to every tenant."""
        return self._slo_of(model) is None

    def why_stalled(self, model: Model) -> str | None:
        """What the operator says of a Model that will not start any more: Stalled, as it stands."""
        meta = model.metadata
        for condition in model.status.conditions:
            stalled = (condition.type, condition.status) == (ConditionType.STALLED.value, "True")
            if stalled and condition.observed_generation >= meta.generation:
                return f"{condition.reason}: {condition.message}"
        return None

    def _slo_of(self, model: Model) -> ServiceLevelObjective | None:
        ref = model.spec.service_level_ref
        return None if ref is None else self.slos.get((model.metadata.namespace, ref.name))
