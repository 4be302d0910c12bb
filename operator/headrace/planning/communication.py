"""Communication plan: what the ranks of a replica send each other in prefill and decode, and how long it takes.

The model counts what grows with the tokens: the all-reduces inside layers and the activations between stages. The
embedding, the logits and any overlap with computing are left out, so times are those of links alone.

* Tensor parallelism: two all-reduces of tokens x hidden per layer, after attention and after the MLP
  (Shoeybi et al., Megatron-LM, 2019, section 3).
* All-reduce of M bytes over n ranks of one node, as a ring: 2(n-1) steps of M/n bytes, so each rank sends 2(n-1)/n x M
  (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).
* Over m nodes with g ranks each, hierarchically: reduce-scatter inside each node, a ring of nodes in which each rank
  carries M/g, all-gather inside each node (Goyal et al., Accurate, Large Minibatch SGD, 2017, section 4). The g ranks
  share their node's link, so a node sends 2(m-1)/m x M.
* A step of s bytes takes latency + s / bandwidth (Hockney's model; Thakur et al., 2005).
* Pipeline parallelism: tokens x hidden from a stage to the next, one stage after the other. Inside a node every rank
  sends to its peer; between nodes each of a node's g ranks sends 1/g, and the receivers all-gather it
  (Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, section 4.1).

Stages are laid out in order, and a stage never shares a node's rest: `gpusPerNode // tensor` stages stand on one node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from headrace.api.model import ModelSpec
from headrace.api.model_status import CommunicationStatus, PhaseTraffic
from headrace.api.profile import ProfileSpec, Topology
from headrace.api.quantities import show_bytes, show_seconds
from headrace_wire.memory import check_degrees, element_bytes
from headrace_wire.shape import ModelShape

PREFILL_TOKENS = 1000  # prompt tokens that a plan's prefill is given for


class LinkName(str, Enum):
    """Links, as a profile's topology names them."""

    NONE = "none"
    INTRA_NODE = "intraNode"
    INTER_NODE = "interNode"


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a replica stand."""

    tensor: int
    pipeline: int
    nodes_per_stage: int
    stages_per_node: int

    @staticmethod
    def of(tensor: int, pipeline: int, gpus_per_node: int) -> Placement:
        """A stage fills whole nodes, or shares one with as many stages as fit."""
        return Placement(tensor, pipeline, max(1, -(-tensor // gpus_per_node)), max(1, gpus_per_node // tensor))

    @property
    def nodes(self) -> int:
        """Nodes of one replica."""
        if self.nodes_per_stage > 1:
            return self.nodes_per_stage * self.pipeline
        return -(-self.pipeline // self.stages_per_node)

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one stage on one node."""
        return self.tensor // self.nodes_per_stage

    @property
    def hops(self) -> dict[LinkName, int]:
        """How many boundaries between stages each link carries."""
        between = self.nodes - 1 if self.nodes_per_stage == 1 else self.pipeline - 1
        return {LinkName.INTRA_NODE: self.pipeline - 1 - between, LinkName.INTER_NODE: between}


@dataclass(frozen=True)
class Traffic:
    """What one operation puts on one link, over a whole forward pass."""

    what: str
    link: LinkName
    messages: int  # steps, one after the other
    bytes: int  # that one rank sends inside its node, or one node to others
    seconds: float


@dataclass(frozen=True)
class LinkLoad:
    """All that crosses one link in a phase."""

    link: LinkName
    bytes: int
    seconds: float

    def as_status(self) -> PhaseTraffic:
        """As it stands in a Model's status."""
        return PhaseTraffic(bytes=show_bytes(self.bytes), time=show_seconds(self.seconds))


_NOTHING = LinkLoad(LinkName.NONE, 0, 0.0)


@dataclass(frozen=True)
class Phase:
    """A forward pass of so many tokens."""

    tokens: int
    traffic: tuple[Traffic, ...]

    @property
    def seconds(self) -> float:
        """Time on the links: operations follow one another."""
        return sum(one.seconds for one in self.traffic)

    @property
    def links(self) -> tuple[LinkLoad, ...]:
        """Load of each link that is used, the busiest first."""
        used = {one.link for one in self.traffic}
        return tuple(sorted((self.load(link) for link in used), key=lambda load: (-load.seconds, load.link)))

    @property
    def slowest(self) -> LinkLoad:
        """The link that takes the most time."""
        return self.links[0] if self.traffic else _NOTHING

    def load(self, link: LinkName) -> LinkLoad:
        """All that crosses a link."""
        mine = [one for one in self.traffic if one.link is link]
        return LinkLoad(link, sum(one.bytes for one in mine), sum(one.seconds for one in mine))


@dataclass(frozen=True)
class CommunicationPlan:
    """Prefill of 1,000 tokens, and a decode step of one sequence (and of a full batch)."""

    placement: Placement
    prefill: Phase
    decode: Phase
    full_decode: Phase

    @property
    def slowest_link(self) -> LinkName:
        """The link that takes the most time of a prefill."""
        return self.prefill.slowest.link

    def as_status(self) -> CommunicationStatus:
        """As it stands in a Model's status: what crosses the slowest link."""
        link = self.slowest_link
        if link is LinkName.NONE:
            return CommunicationStatus(slowest_link=link.value)
        return CommunicationStatus(
            slowest_link=link.value,
            prefill=self.prefill.load(link).as_status(),
            decode=self.decode.load(link).as_status(),
        )


@dataclass(frozen=True)
class _Steps:
    """Messages of one operation on one link: `steps`, one after the other, of `part` bytes each."""

    what: str
    link: LinkName
    steps: int
    part: float

    def traffic(self, links: Topology, times: int) -> Traffic:
        """Their load when the operation happens `times` times; a step takes what Hockney's model says."""
        link = links.inter_node if self.link is LinkName.INTER_NODE else links.intra_node
        count = self.steps * times
        return Traffic(
            what=self.what,
            link=self.link,
            messages=count,
            bytes=round(count * self.part),
            seconds=count * (link.latency_s + self.part / link.bytes_per_second),
        )


def _all_reduce(placement: Placement, size: float) -> Iterable[_Steps]:
    """One all-reduce of `size` bytes over the ranks of a stage."""
    local, nodes = placement.ranks_per_node, placement.nodes_per_stage
    if local > 1:
        what = "all-reduce" if nodes == 1 else "reduce-scatter and all-gather"
        yield _Steps(what, LinkName.INTRA_NODE, 2 * (local - 1), size / local)
    if nodes > 1:
        yield _Steps("all-reduce between nodes", LinkName.INTER_NODE, 2 * (nodes - 1), size / nodes)


def _hop(placement: Placement, link: LinkName, size: float) -> Iterable[_Steps]:
    """`size` bytes of activations from one stage to the next."""
    yield _Steps("activations between stages", link, 1, size)
    local = placement.ranks_per_node
    if link is LinkName.INTER_NODE and local > 1:
        yield _Steps("all-gather of activations", LinkName.INTRA_NODE, local - 1, size / local)


def _phase(shape: ModelShape, placement: Placement, links: Topology, step: tuple[int, int]) -> Phase:
    """A forward pass; `step`: tokens, and bytes of the hidden state of all of them."""
    tokens, size = step
    found = [part.traffic(links, 2 * shape.layers) for part in _all_reduce(placement, size)]
    for link, hops in placement.hops.items():
        if hops:
            found += [part.traffic(links, hops) for part in _hop(placement, link, size)]
    return Phase(tokens, tuple(found))


def plan(shape: ModelShape, profile: ProfileSpec, dtype: str = "auto", sequences: int = 1) -> CommunicationPlan | None:
    """What crosses the links of a replica; `sequences`: of a full decode batch.

    None without a topology, unless there is one rank, which talks to nobody. Raises ParallelismError if the model
    cannot be split so.
    """
    check_degrees(shape, profile.tensor, profile.pipeline)
    links = profile.topology
    if links is None:
        if profile.ranks > 1:
            return None
        silent = Placement.of(1, 1, 1)
        return CommunicationPlan(silent, Phase(PREFILL_TOKENS, ()), Phase(1, ()), Phase(sequences, ()))
    placement = Placement.of(profile.tensor, profile.pipeline, links.gpus_per_node)
    width = shape.hidden * element_bytes(shape, dtype)
    prefill, decode, full = (
        _phase(shape, placement, links, (tokens, tokens * width)) for tokens in (PREFILL_TOKENS, 1, sequences)
    )
    return CommunicationPlan(placement, prefill, decode, full)


def plan_model(spec: ModelSpec, profile: ProfileSpec | None, shape: ModelShape) -> CommunicationPlan | None:
    """`plan` of a Model on its profile; without a profile, of one rank. Raises ParallelismError."""
    return plan(shape, profile or ProfileSpec(), spec.precision.dtype, spec.engine.max_sequences)


def nodes_per_replica(profile: ProfileSpec) -> int:
    """Nodes that a replica spans; without a topology, as if a node held it whole."""
    if profile.topology is None:
        return 1
    return Placement.of(profile.tensor, profile.pipeline, profile.topology.gpus_per_node).nodes
