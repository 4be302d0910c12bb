"""ParallelismProfile: how a replica is spread over accelerators, and what connects them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from headrace.api.cel import Rule
from headrace.api.common import MAP_BY_TYPE, ApiType, Count, Metadata
from headrace.api.conditions import OBSERVED_GENERATION, Condition
from headrace.api.quantities import Latency, PositiveBytes, byte_count, seconds


class Link(ApiType):
    """A link, as one end sees it."""

    bandwidth: PositiveBytes = Field(description="Bytes per second in one direction, such as 450G (10^9 bytes).")
    latency: Latency = Field(description="Time of one message apart from its bytes, one way, such as 2us.")

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
    intra_node: Link = Field(description="Link of one accelerator to others of its node.")
    inter_node: Link = Field(
        description="Link of one node to others; its accelerators share it. 50G are 400 gigabits per second."
    )


class ProfileSpec(ApiType):
    """Degrees of parallelism of one replica."""

    tensor: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Ranks that share the work of each layer.")
    pipeline: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Stages that the layers are split into.")
    topology: Topology | None = Field(None, description="Links between accelerators, for the communication plan.")

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tensor * self.pipeline

    @property
    def shares_evenly(self) -> bool:
        """Ranks of one layer fit on a node or fill whole ones; True where no topology tells."""
        node = self.tensor if self.topology is None else self.topology.gpus_per_node
        return self.tensor <= node or self.tensor % node == 0

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.topology) || self.tensor <= self.topology.gpusPerNode || "
            "self.tensor % self.topology.gpusPerNode == 0",
            "tensor above topology.gpusPerNode must be a multiple of it: nodes share a layer evenly",
            field=".tensor",
            holds=lambda spec: spec.shares_evenly,
        ),
    )


class ProfileStatus(ApiType):
    """What the operator derived."""

    observed_generation: int = Field(-1, description=OBSERVED_GENERATION)
    gpus_per_replica: Count = Field(0, description="Accelerators of one replica.")
    nodes_per_replica: Count = Field(0, description="Nodes that one replica spans.")
    used_by: list[str] = Field(default_factory=list, description="Names of the Models that refer to this object.")
    conditions: list[Condition] = Field(
        default_factory=list, description="Ready: the operator has read this generation.", json_schema_extra=MAP_BY_TYPE
    )


class ParallelismProfile(ApiType):
    """How a replica is spread over accelerators, for Models to refer to."""

    metadata: Metadata
    spec: ProfileSpec
    status: ProfileStatus = Field(default_factory=ProfileStatus)
