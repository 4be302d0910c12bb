"""Conditions of Headrace's objects: their types, reasons and how a list of them is rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal

from pydantic import Field

from headrace.api.common import ApiType

Status = Literal["True", "False", "Unknown"]


class ConditionType(str, Enum):
    """Condition types; RECONCILING and STALLED stand in a status only while True."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    MEMORY_FITS = "MemoryFits"
    WORKLOAD_READY = "WorkloadReady"
    ENGINE_CONFORMANT = "EngineConformant"
    SERVICE_LEVEL_MET = "ServiceLevelMet"
    SCALING_ACTIVE = "ScalingActive"
    ENFORCED = "Enforced"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


OBSERVED_GENERATION = "Generation of the object that this status describes; -1: nobody has looked at it yet."


class Condition(ApiType):
    """One thing that is said of the object."""

    type: str = Field(description="What is said.", min_length=1, max_length=316)
    status: Status = Field(description="Whether it holds.")
    reason: str = Field(description="Why, in one CamelCase word.", min_length=1, max_length=1024)
    message: str = Field("", description="Why, in a sentence with numbers.", max_length=32768)
    observed_generation: int = Field(0, description="Generation of the object that this was said of.")
    last_transition_time: str = Field(
        "", description="When `status` last changed.", json_schema_extra={"format": "date-time"}
    )


def merge(old: Iterable[Condition], new: Iterable[Condition], now: str) -> list[Condition]:
    """`new`, each with the transition time kept from `old` where its status has not changed. `now`: RFC 3339."""
    before = {c.type: c for c in old}
    merged = []
    for condition in new:
        previous = before.get(condition.type)
        kept = previous is not None and previous.status == condition.status and previous.last_transition_time
        merged.append(
            condition.model_copy(
                update={"last_transition_time": previous.last_transition_time if kept and previous else now}
            )
        )
    return merged
