"""The CustomResourceDefinitions: from the types, schemas with rules, columns and subresources. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from headrace.api.cel import VALIDATIONS, Rule
from headrace.api.common import CATEGORY, GROUP, LABEL_PATTERN, VERSION, ApiType
from headrace.api.model import Model
from headrace.api.profile import ParallelismProfile
from headrace.api.slo import ServiceLevelObjective
from headrace.api.structural import Schema, structural
from headrace.api.tenant import Tenant

EPOCH = "1970-01-01T00:00:00Z"
_READY = '.status.conditions[?(@.type=="Ready")]'


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. `priority` 1: only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    about: str = ""

    def as_schema(self) -> Schema:
        """An entry of additionalPrinterColumns."""
        entry: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.about:
            entry["description"] = self.about
        if self.priority:
            entry["priority"] = self.priority
        return entry


_AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Kind:
    """How a type is served."""

    type: type[ApiType]
    plural: str
    short: str
    columns: tuple[Column, ...]
    name_pattern: str = LABEL_PATTERN
    name_length: int = 63  # of metadata.name, so that a reference or a child's name can hold it
    name_rule: str = "metadata.name must consist of a-z, 0-9 and -, and begin and end with a letter or digit"
    scale: bool = False

    @property
    def name(self) -> str:
        """The kind's name."""
        return self.type.__name__

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


KINDS = (
    Kind(
        Model,
        "models",
        "mdl",
        (
            Column("Ready", f"{_READY}.status"),
            Column("Replicas", ".status.readyReplicas", "integer", about="Pods that serve."),
            Column("Desired", ".status.scaling.desired", "integer", about="Replicas that are wanted."),
            Column("Reason", f"{_READY}.reason"),
            Column("SLO met", '.status.conditions[?(@.type=="ServiceLevelMet")].status'),
            Column("Goodput %", ".status.serviceLevel[0].goodputPercent", "integer", about="Of the first class."),
            Column("Queue age", ".status.serviceLevel[0].queueAge", about="Of the first class."),
            Column("Mode", ".spec.scaling.mode", priority=1),
            Column("Source", ".spec.source.uri", priority=1),
            Column("Message", f"{_READY}.message", priority=1),
            _AGE,
        ),
        name_pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        name_length=50,
        name_rule="metadata.name must consist of a-z, 0-9 and -, begin with a letter and not end with -: "
        "it names a Service",
        scale=True,
    ),
    Kind(
        ServiceLevelObjective,
        "servicelevelobjectives",
        "slo",
        (
            Column("Classes", ".status.classes"),
            Column("Window", ".spec.window", priority=1),
            Column("Used by", ".status.usedBy"),
            _AGE,
        ),
    ),
    Kind(
        Tenant,
        "tenants",
        "tnt",
        (
            Column("Ready", f"{_READY}.status"),
            Column("Enforced", '.status.conditions[?(@.type=="Enforced")].status'),
            Column("Requests/min", ".status.usage.requestsLastMinute", "integer"),
            Column("Tokens/min", ".status.usage.tokensLastMinute", "integer"),
            Column("Tokens today", ".status.usage.tokensToday", "integer", priority=1),
            Column("Reason", f"{_READY}.reason", priority=1),
            _AGE,
        ),
    ),
    Kind(
        ParallelismProfile,
        "parallelismprofiles",
        "par",
        (
            Column("Tensor", ".spec.tensor", "integer"),
            Column("Pipeline", ".spec.pipeline", "integer"),
            Column("GPUs/replica", ".status.gpusPerReplica", "integer"),
            Column("Nodes/replica", ".status.nodesPerReplica", "integer", priority=1),
            Column("Used by", ".status.usedBy"),
            _AGE,
        ),
    ),
)
"""Every kind of the group, in the order of the documentation."""

_API_VERSION = {"type": "string", "description": f"Version of the object's schema: {GROUP}/{VERSION}."}
_PENDING: list[Schema] = [
    {
        "type": "Ready",
        "status": "Unknown",
        "reason": "Pending",
        "message": "Waiting for the operator.",
        "lastTransitionTime": EPOCH,
    }
]


def schema_of(kind: Kind) -> Schema:
    """The structural schema of a kind's objects."""
    fields = kind.type.model_fields
    spec, status = fields["spec"].annotation, fields["status"].annotation
    if not (isinstance(spec, type) and isinstance(status, type)):
        raise TypeError(f"{kind.name} needs a spec and a status")
    name = {"type": "string", "maxLength": kind.name_length}
    return {
        "type": "object",
        "description": _text(kind.type),
        "required": ["spec"],
        "properties": {
            "apiVersion": _API_VERSION,
            "kind": {"type": "string", "description": f"{kind.name}."},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": structural(spec, defaults=True),
            "status": _status(structural(status, defaults=False)),
        },
        VALIDATIONS: [Rule(f"self.metadata.name.matches(r'{kind.name_pattern}')", kind.name_rule).as_schema()],
    }


def _text(documented: type) -> str:
    return " ".join((documented.__doc__ or "").split())


def _status(schema: Schema) -> Schema:
    """Nobody has looked yet: so `kubectl wait --for=condition=Ready` cannot pass before the operator has."""
    schema["default"] = {}
    schema["properties"]["observedGeneration"]["default"] = -1
    schema["properties"]["conditions"]["default"] = deepcopy(_PENDING)
    return schema


def crd(kind: Kind) -> Schema:
    """The CustomResourceDefinition of a kind."""
    subresources: Schema = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.as_schema() for column in kind.columns],
                    "schema": {"openAPIV3Schema": schema_of(kind)},
                }
            ],
        },
    }


def crds(kinds: Sequence[Kind] = KINDS) -> dict[str, dict[str, Any]]:
    """Every CustomResourceDefinition, by its name."""
    return {kind.crd_name: crd(kind) for kind in kinds}
