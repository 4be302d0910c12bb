"""ParallelismProfile: how a replica is spread over accelerators, and what connects them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.api.common import ApiType, Metadata
from headrace.api.conditions import Condition
from headrace.api.quantities import ByteQuantity, Latency, byte_count, seconds


class Link(ApiType):
    """A link between two accelerators."""

    bandwidth: ByteQuantity = Field(description="Bytes per second in one direction, such as 450G.")
    latency: Latency = Field(description="One-way latency, such as 2us.")

    @property
    def bytes_per_second(self) -> int:
        """Bytes per second, one direction."""
        return byte_count(self.bandwidth)

    @property
    def latency_s(self) -> float:
        """Seconds."""
        return seconds(self.latency)


class Topology(ApiType):
    """How accelerators are connected."""

    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = Field(8, description="Accelerators of one node.")
    intra_node: Link = Field(description="Between accelerators of one node.")
    inter_node: Link = Field(description="Between nodes.")


class ProfileSpec(ApiType):
    """Degrees of parallelism of one replica."""

    tensor: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Tensor-parallel ranks.")
    pipeline: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Pipeline stages.")
    topology: Topology | None = Field(None, description="Links between accelerators, for the communication plan.")

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tensor * self.pipeline


class ProfileStatus(ApiType):
    """What the operator derived."""

    observed_generation: int = -1
    gpus_per_replica: int = 0
    nodes_per_replica: int = 0
    used_by: list[str] = Field(default_factory=list, description="Models that refer to this object.")
    conditions: list[Condition] = Field(default_factory=list)


class ParallelismProfile(ApiType):
    """How a replica is spread over accelerators, for Models to refer to."""

    metadata: Metadata
    spec: ProfileSpec
    status: ProfileStatus = Field(default_factory=ProfileStatus)
