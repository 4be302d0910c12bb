"""Model: a language model that is served, and how."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from headrace.api.cel import Form, Rule
from headrace.api.common import MAP_BY_NAME, NO_DEFAULT, ApiType, Metadata, NamedRef
from headrace.api.model_status import ModelStatus
from headrace.api.pod import EnvVar, PodSettings
from headrace.api.quantities import MemoryBytes, PositiveDuration, seconds
from headrace.api.schedule import Bounds, Override, Schedule, bounds_at
from headrace.api.source import SecretKeyRef, Source

__all__ = [
    "Accelerator",
    "Cache",
    "Context",
    "EngineSettings",
    "EnvVar",
    "Model",
    "ModelSpec",
    "Override",
    "PodSettings",
    "Precision",
    "Runtime",
    "Scaling",
    "Schedule",
    "SecretKeyRef",
    "Source",
]


IMAGE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9_./:@]*$"
_IMAGE_FORM = "must be an image's name, such as registry/name:tag or registry/name@sha256:DIGEST, without blanks"


class Runtime(ApiType):
    """What runs the model."""

    name: Literal["headrace"] = Field("headrace", description="The engine.")
    image: Annotated[str, Field(min_length=1, max_length=512), Form(IMAGE_PATTERN, _IMAGE_FORM)] | None = Field(
        None, description="Engine image instead of the installation's."
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list, description="Further environment of the engine container.", json_schema_extra=MAP_BY_NAME
    )


class Accelerator(ApiType):
    """The accelerator of one rank."""

    resource: Annotated[
        str,
        Field(max_length=317),
        Form(
            r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            "must be DOMAIN/NAME, such as nvidia.com/gpu",
        ),
    ] = Field("nvidia.com/gpu", description="Extended resource of which a rank gets one, as DOMAIN/NAME.")
    memory: MemoryBytes = Field(description="Memory of one accelerator, such as 80Gi.")


class Precision(ApiType):
    """Number formats."""

    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="Of weights, activations and the KV cache. auto: float32 if the checkpoint is, else bfloat16.",
    )


class Context(ApiType):
    """Length limits."""

    max_tokens: Annotated[int, Field(ge=2, le=10_000_000)] | None = Field(
        None, description="Longest prompt plus output, in tokens. Absent: what the model was trained for."
    )


class EngineSettings(ApiType):
    """Limits of one engine."""

    max_sequences: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="Requests that run at one time.")
    max_batch_tokens: Annotated[int, Field(ge=64, le=1_000_000)] = Field(
        2048, description="Tokens computed in one step, prefill and decode together."
    )
    memory_percent: Annotated[int, Field(ge=10, le=95)] = Field(
        90, description="Share of a rank's memory that the engine may use, in percent."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSequences <= self.maxBatchTokens",
            "maxSequences must not exceed maxBatchTokens: each running request takes a token of every step",
            field=".maxSequences",
            holds=lambda engine: engine.max_sequences <= engine.max_batch_tokens,
        ),
    )


class Cache(ApiType):
    """Who shares the prefix cache."""

    scope: Literal["tenant", "group", "shared"] = Field(
        "tenant", description="tenant: no two tenants; group: tenants of one cacheGroup; shared: all tenants."
    )


class Scaling(ApiType):
    """How many replicas run, and who decides."""

    mode: Literal["Auto", "Advise", "Off"] = Field(
        "Off",
        description='Auto: the autoscaler acts. Advise: it only records what it would do. "Off": spec.replicas holds; '
        "in YAML put Off into quotes, it reads as false otherwise.",
    )
    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Fewest replicas under Auto; 0 allows scaling to zero."
    )
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(
        1,
        description="Most replicas under Auto: what you are ready to pay for. Required with Auto and Advise.",
        json_schema_extra=NO_DEFAULT,
    )
    to_zero_after: PositiveDuration = Field(
        "10m", description="With minReplicas 0: a Model that is idle for so long is scaled to zero."
    )
    down_after: PositiveDuration = Field(
        "5m", description="One replica fewer must have sufficed for so long before one is removed."
    )
    schedules: Annotated[list[Schedule], Field(max_length=16)] = Field(
        default_factory=list,
        description="Windows of the day with bounds of their own, in place of minReplicas and maxReplicas. Of several "
        "that are open the largest minReplicas and the largest maxReplicas hold.",
        json_schema_extra=MAP_BY_NAME,
    )
    override: Override | None = Field(
        None, description="A number of replicas by hand for a time, in place of all bounds and schedules."
    )
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        1,
        description="Against other Models of the namespace, where a ResourceQuota or the nodes' room is too small for "
        "all: the shortfall of a Model of weight 2 counts twice.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.mode == 'Off' || has(self.maxReplicas)",
            "maxReplicas is required with mode Auto and Advise",
            field=".maxReplicas",
            holds=lambda scaling: scaling.mode == "Off" or scaling.says_most,
        ),
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            field=".minReplicas",
            holds=lambda scaling: not scaling.says_most or scaling.min_replicas <= scaling.max_replicas,
        ),
        Rule(
            "!has(self.schedules) || !has(self.maxReplicas) || self.schedules.all(s, "
            "(has(s.minReplicas) ? s.minReplicas : self.minReplicas) <= "
            "(has(s.maxReplicas) ? s.maxReplicas : self.maxReplicas))",
            "a schedule's minReplicas must not exceed its maxReplicas; where it lacks one, scaling's counts",
            field=".schedules",
            holds=lambda scaling: not scaling.says_most or all(map(scaling.in_order, scaling.schedules)),
        ),
    )

    @property
    def says_most(self) -> bool:
        """maxReplicas was given."""
        return "max_replicas" in self.model_fields_set

    def in_order(self, schedule: Schedule) -> bool:
        """The schedule's fewest replicas are not more than its most, with the spec's own for what it lacks."""
        least = self.min_replicas if schedule.min_replicas is None else schedule.min_replicas
        most = self.max_replicas if schedule.max_replicas is None else schedule.max_replicas
        return least <= most

    def bounds(self, at: float | None = None) -> Bounds:
        """Fewest and most replicas at a time in unix seconds, by schedules and override; None: the spec's own."""
        own = Bounds(self.min_replicas, max(self.min_replicas, self.max_replicas))
        return own if at is None else bounds_at(own, self.schedules, self.override, at)

    @property
    def to_zero_after_s(self) -> float:
        """Seconds."""
        return seconds(self.to_zero_after)

    @property
    def down_after_s(self) -> float:
        """Seconds."""
        return seconds(self.down_after)


class ModelSpec(ApiType):
    """What is served, and how."""

    source: Source = Field(description="Where the model's files come from.")
    runtime: Runtime = Field(default_factory=Runtime, description="What runs the model.")
    accelerator: Accelerator | None = Field(None, description="The accelerator of one rank. Absent: CPU.")
    parallelism_ref: NamedRef | None = Field(
        None, description="ParallelismProfile that spreads a replica over accelerators. Absent: one rank."
    )
    service_level_ref: NamedRef | None = Field(
        None,
        description="ServiceLevelObjective with the latency targets. Absent: the built-in one, with the class "
        "`default` (ttft 2s, tpot 200ms, maxQueueAge 1s, 95 percent).",
    )
    precision: Precision = Field(default_factory=Precision, description="Number formats.")
    context: Context = Field(default_factory=Context, description="Length limits.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="Limits of one engine.")
    cache: Cache = Field(default_factory=Cache, description="Who shares the prefix cache.")
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1,
        description="Replicas under the modes Off and Advise. May not change under Auto, where the autoscaler decides.",
    )
    scaling: Scaling = Field(default_factory=Scaling, description="How many replicas run, and who decides.")
    pod: PodSettings = Field(
        default_factory=PodSettings, description="What the engine's pods need beyond the defaults."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "oldSelf.scaling.mode != 'Auto' || self.scaling.mode != 'Auto' || self.replicas == oldSelf.replicas",
            "replicas may not change while scaling.mode is Auto: the autoscaler decides how many run",
            field=".replicas",
        ),
        *(
            Rule(
                f"!has(self.accelerator) || !has(self.pod.resources) || !has(self.pod.resources.{kind}) || "
                f"!(self.accelerator.resource in self.pod.resources.{kind})",
                "pod.resources must not name the accelerator's resource: a pod gets one accelerator per rank",
                field=".pod.resources",
                holds=lambda spec, kind=kind: (  # type: ignore[misc]
                    spec.accelerator is None or spec.accelerator.resource not in spec.pod.resources.get(kind, {})
                ),
            )
            for kind in ("requests", "limits")
        ),
    )


class Model(ApiType):
    """A language model that is served within its latency targets. Whoever may create Models may run pods."""

    metadata: Metadata
    spec: ModelSpec
    status: ModelStatus = Field(default_factory=ModelStatus)
