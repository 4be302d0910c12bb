"""Model: a language model that is served, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.config import JsonDict

from headrace.api.common import ApiType, Metadata, NamedRef
from headrace.api.model_status import ModelStatus
from headrace.api.quantities import ByteQuantity, Duration, byte_count, seconds

_PRESERVE: JsonDict = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class SecretKeyRef(ApiType):
    """A key of a Secret in the same namespace; kubelet mounts it, the operator never reads it."""

    name: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Name of the Secret.")
    key: Annotated[str, Field(min_length=1, max_length=253)] = Field("token", description="Key in the Secret.")


class Source(ApiType):
    """Where the model's files come from."""

    uri: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^(builtin|pvc|hf)://.+$")] = Field(
        description="builtin://demo, pvc://CLAIM/PATH or hf://ORG/NAME@REVISION."
    )
    secret_ref: SecretKeyRef | None = Field(None, description="Token for a gated hub repository.")

    @property
    def scheme(self) -> str:
        """builtin, pvc or hf."""
        return self.uri.split("://", 1)[0]

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim of a pvc source."""
        return self.uri.split("://", 1)[1].split("/", 1)[0] if self.scheme == "pvc" else None


class Runtime(ApiType):
    """What runs the model."""

    name: Literal["headrace"] = Field("headrace", description="The engine.")
    image: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Engine image instead of the installation's."
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list,
        description="Further environment of the engine container.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class EnvVar(ApiType):
    """An environment variable."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=4096)] = ""


class Accelerator(ApiType):
    """The accelerator of one rank."""

    resource: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        "nvidia.com/gpu", description="Extended resource that a rank requests one of."
    )
    memory: ByteQuantity = Field(description="Memory of one accelerator, such as 80Gi.")


class Precision(ApiType):
    """Number formats."""

    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="Of the weights; auto: the checkpoint's.")


class Context(ApiType):
    """Length limits."""

    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Longest prompt plus output, in tokens. Absent: what the model was trained for."
    )


class EngineSettings(ApiType):
    """Limits of one engine."""

    max_sequences: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="Requests that run at one time.")
    max_batch_tokens: Annotated[int, Field(ge=64, le=1_000_000)] = Field(2048, description="Tokens of one step.")
    memory_percent: Annotated[int, Field(ge=10, le=95)] = Field(
        90, description="Share of the memory that the engine may use."
    )


class Cache(ApiType):
    """Who shares the prefix cache."""

    scope: Literal["tenant", "group", "shared"] = Field(
        "tenant", description="tenant: nobody; group: tenants of one cacheGroup; shared: all."
    )


class Scaling(ApiType):
    """How many replicas run."""

    mode: Literal["Auto", "Advise", "Off"] = Field(
        "Off", description="Auto: the autoscaler acts. Advise: it only records what it would do. Off: `replicas` holds."
    )
    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Fewest replicas; 0 allows scaling to zero."
    )
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Most replicas.")
    to_zero_after: Duration = Field("10m", description="With minReplicas 0: idle for so long scales to zero.")
    down_after: Duration = Field(
        "5m", description="One replica fewer must have sufficed for so long before one is removed."
    )

    @property
    def to_zero_after_s(self) -> float:
        """Seconds."""
        return seconds(self.to_zero_after)

    @property
    def down_after_s(self) -> float:
        """Seconds."""
        return seconds(self.down_after)


class PodSettings(ApiType):
    """What the engine's pods need beyond the defaults."""

    labels: dict[str, str] = Field(default_factory=dict, description="Further labels of the pods.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: Annotated[list[dict[str, Any]], Field(max_length=32)] = Field(
        default_factory=list, description="Taints that the pods tolerate.", json_schema_extra={"items": _PRESERVE}
    )
    resources: dict[str, Any] = Field(
        default_factory=dict,
        description="Requests and limits of the engine container, without the accelerator.",
        json_schema_extra=_PRESERVE,
    )
    image_pull_secrets: Annotated[list[NamedRef], Field(max_length=16)] = Field(
        default_factory=list, description="Secrets for the image registry."
    )
    priority_class_name: Annotated[str, Field(max_length=253)] | None = Field(
        None, description="PriorityClass of the pods."
    )

    def memory_limit(self) -> int | None:
        """Bytes of the container's memory limit, or None."""
        limits = self.resources.get("limits")
        value = limits.get("memory") if isinstance(limits, dict) else None
        return None if value is None else byte_count(str(value))


class ModelSpec(ApiType):
    """What is served, and how."""

    source: Source = Field(description="Where the model's files come from.")
    runtime: Runtime = Field(default_factory=Runtime, description="What runs the model.")
    accelerator: Accelerator | None = Field(None, description="Accelerator of one rank. Absent: CPU.")
    parallelism_ref: NamedRef | None = Field(None, description="ParallelismProfile. Absent: one rank.")
    service_level_ref: NamedRef | None = Field(
        None, description="ServiceLevelObjective. Absent: the built-in one with class `default`."
    )
    precision: Precision = Field(default_factory=Precision, description="Number formats.")
    context: Context = Field(default_factory=Context, description="Length limits.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="Limits of one engine.")
    cache: Cache = Field(default_factory=Cache, description="Who shares the prefix cache.")
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="Replicas under the modes Off and Advise.")
    scaling: Scaling = Field(default_factory=Scaling, description="How many replicas run.")
    pod: PodSettings = Field(
        default_factory=PodSettings, description="What the engine's pods need beyond the defaults."
    )


class Model(ApiType):
    """A language model that is served within its latency targets."""

    metadata: Metadata
    spec: ModelSpec
    status: ModelStatus = Field(default_factory=ModelStatus)


Runtime.model_rebuild()
