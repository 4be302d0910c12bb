"""ServiceLevelObjective: latency targets by class."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from headrace.api.cel import Rule
from headrace.api.common import MAP_BY_NAME, MAP_BY_TYPE, ApiType, Metadata, Name
from headrace.api.conditions import OBSERVED_GENERATION, Condition
from headrace.api.quantities import SHORT_DURATION, PositiveDuration, seconds


def _comparable(one: str, other: str, rule: str) -> str:
    """The rule, where both fields are durations; where one is none, that has been told already."""
    formed = " && ".join(f"self.{field}.matches(r'{SHORT_DURATION}')" for field in (one, other))
    return f"!({formed}) || {rule}"


class ServiceClass(ApiType):
    """The targets of one class. A request is good if it meets all of them."""

    name: Name = Field(description="Name of the class, as in Tenant.spec.classes and the x-headrace-class header.")
    priority: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="Classes with a higher number are served first."
    )
    ttft: PositiveDuration = Field(description="Target of the time to first token, such as 500ms.")
    tpot: PositiveDuration = Field(
        description="Target of the mean time per output token after the first, such as 50ms."
    )
    e2e: PositiveDuration | None = Field(
        None, description="Target of the whole request's time, such as 30s. Absent: none."
    )
    max_queue_age: PositiveDuration = Field(
        description="The autoscaler adds replicas before a request waits longer than this, such as 250ms."
    )
    objective_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        99, description="Share of offered requests that must be good, in percent."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _comparable("maxQueueAge", "ttft", "duration(self.maxQueueAge) <= duration(self.ttft)"),
            "maxQueueAge must not exceed ttft: a request that old is already late",
            field=".maxQueueAge",
            numbers="'maxQueueAge ' + self.maxQueueAge + ' exceeds ttft ' + self.ttft + "
            "': a request that old is already late'",
            holds=lambda row: row.max_queue_age_s <= row.ttft_s,
        ),
        Rule(
            "!has(self.e2e) || " + _comparable("e2e", "ttft", "duration(self.e2e) >= duration(self.ttft)"),
            "e2e must not be shorter than ttft: the whole request includes its first token",
            field=".e2e",
            numbers="'e2e ' + self.e2e + ' is shorter than ttft ' + self.ttft + "
            "': the whole request includes its first token'",
            holds=lambda row: row.e2e_s is None or row.e2e_s >= row.ttft_s,
        ),
    )

    @property
    def ttft_s(self) -> float:
        """Seconds."""
        return seconds(self.ttft)

    @property
    def tpot_s(self) -> float:
        """Seconds."""
        return seconds(self.tpot)

    @property
    def e2e_s(self) -> float | None:
        """Seconds, or None."""
        return None if self.e2e is None else seconds(self.e2e)

    @property
    def max_queue_age_s(self) -> float:
        """Seconds."""
        return seconds(self.max_queue_age)


class SloSpec(ApiType):
    """What is promised."""

    window: PositiveDuration = Field("1h", description="Window over which attainment is reported.")
    classes: Annotated[list[ServiceClass], Field(min_length=1, max_length=16)] = Field(
        description="Classes of requests, each with its targets.",
        json_schema_extra=MAP_BY_NAME,
    )


class SloStatus(ApiType):
    """What the operator saw."""

    observed_generation: int = Field(-1, description=OBSERVED_GENERATION)
    classes: list[str] = Field(default_factory=list, description="Names of the classes, the highest priority first.")
    used_by: list[str] = Field(default_factory=list, description="Names of the Models that refer to this object.")
    conditions: list[Condition] = Field(
        default_factory=list, description="Ready: the operator has read this generation.", json_schema_extra=MAP_BY_TYPE
    )


class ServiceLevelObjective(ApiType):
    """Latency targets by class, for Models to refer to."""

    metadata: Metadata
    spec: SloSpec
    status: SloStatus = Field(default_factory=SloStatus)


BUILTIN_SLO = SloSpec(
    classes=[ServiceClass(name="default", priority=0, ttft="2s", tpot="200ms", maxQueueAge="1s", objectivePercent=95)]
)
"""Used by a Model without `serviceLevelRef`; its one class is open to every tenant."""
