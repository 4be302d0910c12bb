"""The status of a Model: written whole by the operator's leader."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.api.common import ApiType
from headrace.api.conditions import Condition


class SourceStatus(ApiType):
    """What the source resolved to."""

    revision: str = Field("", description="Resolved revision.")
    digest: str = Field("", description="Digest of the weights.")


class ClassStatus(ApiType):
    """How one class fares; absent figures are unknown."""

    name: str = Field(description="Name of the class.")
    goodput_percent: int | None = Field(None, description="Good of offered requests in the last minutes.")
    queue_age: str | None = Field(None, description="Age of the oldest request that has not begun.")
    as_of: str | None = Field(None, description="When this was seen.", json_schema_extra={"format": "date-time"})


class MemoryStatus(ApiType):
    """The arithmetic of the memory fit, per rank."""

    capacity: str = ""
    weights: str = ""
    kv_per_token: str = ""
    overhead: str = ""
    kv_pool: str = ""
    full_length_sequences: int = 0


class PhaseTraffic(ApiType):
    """Traffic of one phase over the slowest link."""

    bytes: str = ""
    time: str = ""


class CommunicationStatus(ApiType):
    """What crosses the slowest link."""

    slowest_link: str = Field("", description="none, intraNode or interNode.")
    prefill: PhaseTraffic | None = Field(None, description="Per 1,000 prompt tokens.")
    decode: PhaseTraffic | None = Field(None, description="Per step of one token.")


class EngineStatus(ApiType):
    """What the engines report."""

    version: str = ""
    max_tokens: int = 0
    blocks: int = 0


class ColdStart(ApiType):
    """Measured time from pod creation to ready."""

    p50: str = ""
    p95: str = ""


class ScalingStatus(ApiType):
    """What the autoscaler decided."""

    desired: int = 0
    cold_start: ColdStart | None = None
    last_decisions: list[dict[str, Any]] = Field(
        default_factory=list,
        description="The last changes, newest first, each with its candidates and guards.",
        json_schema_extra={"items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    )


class ModelStatus(ApiType):
    """What the operator saw."""

    observed_generation: int = -1
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    url: str = ""
    source: SourceStatus | None = None
    pod_revision: str = ""
    service_level: list[ClassStatus] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    memory: MemoryStatus | None = None
    communication: CommunicationStatus | None = None
    engine: EngineStatus | None = None
    scaling: ScalingStatus | None = None
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
