"""The status of a Model: written whole by the operator's leader."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.config import JsonDict

from headrace.api.common import MAP_BY_NAME, MAP_BY_TYPE, ApiType, Count
from headrace.api.conditions import OBSERVED_GENERATION, Condition

_DECISION: JsonDict = {
    "type": "object",
    "description": "One change of the number of replicas, with all that it was decided from.",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "at": {"type": "string", "format": "date-time", "description": "When it was decided."},
        "from": {"type": "integer", "description": "Replicas before."},
        "to": {"type": "integer", "description": "Replicas after."},
        "reason": {"type": "string", "description": "What decided, in one CamelCase word."},
        "message": {"type": "string", "description": "The decision in a sentence with numbers."},
        "winner": {"type": "string", "description": "Name of the candidate that won."},
        "candidates": {
            "type": "array",
            "description": "What each rule answered, also those that lost; docs/scaling.md tells the rules.",
            "items": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "name": {"type": "string", "description": "Rule, such as queueAge or forecast."},
                    "replicas": {"type": "integer", "description": "Its answer; absent: it has no opinion."},
                    "detail": {"type": "string", "description": "Why, with the numbers that it saw."},
                },
            },
        },
        "guards": {
            "type": "array",
            "description": "Bounds that changed the winner's answer, in the order in which they did.",
            "items": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "name": {
                        "type": "string",
                        "description": "data, step, pace, room, budget, maxReplicas, minReplicas, schedule or "
                        "override: see docs/scaling.md.",
                    },
                    "effect": {"type": "string", "description": "From how many replicas to how many, or `holds N`."},
                    "detail": {"type": "string", "description": "Why, with numbers."},
                },
            },
        },
    },
}


class ShapeStatus(ApiType):
    """Sizes of the model, from its config.json: with them the memory fit is judged while no pod runs."""

    architecture: str = Field(description="Such as LlamaForCausalLM.")
    layers: Count = Field(description="Transformer layers.")
    hidden: Count = Field(description="Width of a layer.")
    heads: Count = Field(description="Query heads of a layer.")
    kv_heads: Count = Field(description="Key and value heads of a layer.")
    head_dim: Count = Field(description="Width of a head.")
    intermediate: Count = Field(description="Width of the feed-forward part.")
    vocab: Count = Field(description="Tokens of the vocabulary.")
    max_positions: Count = Field(description="Tokens of the longest sequence that the model was trained for.")
    tied: bool = Field(False, description="The output layer is the embedding.")
    qk_norm: bool = Field(False, description="Queries and keys are normalized.")
    attention_bias: bool = Field(False, description="Projections of queries, keys and values have a bias.")
    dtype: str = Field("bfloat16", description="Number format of the checkpoint.")


class SourceStatus(ApiType):
    """What the source resolved to."""

    uri: str = Field("", description="The source.uri that this was read from.")
    revision: str = Field("", description="Revision of the files: a commit of the hub, or a digest.")
    digest: str = Field("", description="Digest of the weights' index.")
    shape: ShapeStatus | None = Field(None, description="Sizes of the model.")


class ClassStatus(ApiType):
    """How one class fares; absent figures are unknown."""

    name: str = Field(description="Name of the class.")
    goodput_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="Share of the offered requests of the last minutes that were good, in percent."
    )
    queue_age: str | None = Field(None, description="Age of the oldest request that has not begun, such as 310ms.")
    as_of: str | None = Field(None, description="When this was seen.", json_schema_extra={"format": "date-time"})


class MemoryStatus(ApiType):
    """The arithmetic of the memory fit, on the fullest rank; quantities in binary units such as 15.4Gi."""

    capacity: str = Field("", description="Memory of the accelerator, or the container's memory limit.")
    weights: str = Field("", description="Weights on a rank.")
    kv_per_token: str = Field("", description="Keys and values of one token on a rank.")
    overhead: str = Field("", description="The runtime, and what a full step needs.")
    kv_pool: str = Field("", description="What is left for keys and values.")
    full_length_sequences: Count = Field(0, description="Requests of full length that fit at one time.")


class PhaseTraffic(ApiType):
    """Traffic of one phase over the slowest link."""

    bytes: str = Field("", description="Bytes that one rank (intraNode) or one node (interNode) sends, such as 2.5Mi.")
    time: str = Field("", description="Time that the link is busy, such as 310us.")


class CommunicationStatus(ApiType):
    """What crosses the slowest link between the ranks of a replica."""

    slowest_link: str = Field("", description="none, intraNode or interNode.")
    prefill: PhaseTraffic | None = Field(None, description="Per 1,000 prompt tokens.")
    decode: PhaseTraffic | None = Field(None, description="Per step of one sequence.")


class EngineStatus(ApiType):
    """What the engines report."""

    version: str = Field("", description="Version of the engine.")
    max_tokens: Count = Field(0, description="Longest prompt plus output, in tokens.")
    blocks: Count = Field(0, description="Pages of 64 tokens in one engine's pool.")


class ColdStart(ApiType):
    """Measured time from a pod's creation to ready."""

    p50: str = Field("", description="Median, such as 22s.")
    p95: str = Field("", description="95th percentile, such as 31s.")


class ScalingStatus(ApiType):
    """What the autoscaler decided."""

    desired: Count = Field(0, description="Replicas that are wanted now.")
    cold_start: ColdStart | None = Field(None, description="How long a new replica takes.")
    last_decisions: list[dict[str, Any]] = Field(
        default_factory=list,
        description="The last changes, newest first, each with its candidates and guards.",
        json_schema_extra={"items": _DECISION},
    )


class ModelStatus(ApiType):
    """What the operator saw."""

    observed_generation: int = Field(-1, description=OBSERVED_GENERATION)
    replicas: Count = Field(0, description="Pods that exist.")
    ready_replicas: Count = Field(0, description="Pods that serve.")
    selector: str = Field("", description="Label selector of the pods, for the scale subresource.")
    url: str = Field("", description="Base URL of the gateway, for OpenAI clients inside the cluster.")
    source: SourceStatus | None = Field(None, description="What the source resolved to.")
    pod_revision: str = Field("", description="Hash of the pod template that is rolled out.")
    service_level: list[ClassStatus] = Field(
        default_factory=list,
        description="How each class fares, in the order of the objective.",
        json_schema_extra=MAP_BY_NAME,
    )
    memory: MemoryStatus | None = Field(None, description="The arithmetic of the memory fit.")
    communication: CommunicationStatus | None = Field(None, description="What crosses the slowest link.")
    engine: EngineStatus | None = Field(None, description="What the engines report.")
    scaling: ScalingStatus | None = Field(None, description="What the autoscaler decided.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready, Accepted, MemoryFits, WorkloadReady, EngineConformant, ServiceLevelMet, "
        "ScalingActive; Reconciling and Stalled only while True.",
        json_schema_extra=MAP_BY_TYPE,
    )
