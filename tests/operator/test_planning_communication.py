"""Communication plan: numbers worked out by hand, placements, and what must hold for every plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.model import ModelSpec
from headrace.api.profile import Link, ProfileSpec, Topology
from headrace.planning.communication import (
    CommunicationPlan,
    LinkName,
    Placement,
    nodes_per_replica,
    plan,
    plan_model,
)
from headrace_wire.memory import ParallelismError
from headrace_wire.shape import ModelShape, builtin_shape

LLAMA_70B = ModelShape(
    architecture="LlamaForCausalLM",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=28672,
    vocab=128256,
    max_positions=131072,
)


def topology(gpus: int = 8, intra: str = "450G", inter: str = "50G") -> Topology:
    return Topology(
        gpusPerNode=gpus,
        intraNode=Link(bandwidth=intra, latency="2us"),
        interNode=Link(bandwidth=inter, latency="10us"),
    )


def planned(tensor: int, pipeline: int = 1, *, links: Topology | None = None, **more: Any) -> CommunicationPlan:
    profile = ProfileSpec(tensor=tensor, pipeline=pipeline, topology=links or topology())
    found = plan(LLAMA_70B, profile, **more)
    assert found is not None
    return found


def test_ring_inside_a_node_by_hand() -> None:
    """8 ranks, 1,000 tokens of 8192 bfloat16: 160 all-reduces of M = 16,384,000 bytes, 14 steps of M/8 each."""
    [ring] = planned(8).prefill.traffic
    assert (ring.link, ring.messages) == (LinkName.INTRA_NODE, 160 * 14)
    assert ring.bytes == 160 * 2 * 7 * 16_384_000 // 8
    assert ring.seconds == pytest.approx(160 * 14 * (2e-6 + 16_384_000 / 8 / 450e9))


def test_two_nodes_by_hand() -> None:
    """16 ranks on 2 nodes: in a node 14 steps of M/8; between them 2 steps of M/2 a node."""
    local, between = planned(16).prefill.traffic
    assert (local.link, local.bytes) == (LinkName.INTRA_NODE, 160 * 14 * 16_384_000 // 8)
    assert (between.link, between.bytes) == (LinkName.INTER_NODE, 160 * 2 * 16_384_000 // 2)
    assert between.seconds == pytest.approx(160 * 2 * (10e-6 + 16_384_000 / 2 / 50e9))


def test_stages_on_two_nodes_by_hand() -> None:
    """A stage a node: the activations cross once, an eighth by each rank, and are gathered there."""
    _, hop, gather = planned(8, 2).prefill.traffic
    assert (hop.link, hop.messages, hop.bytes) == (LinkName.INTER_NODE, 1, 16_384_000)
    assert hop.seconds == pytest.approx(10e-6 + 16_384_000 / 50e9)
    assert (gather.link, gather.messages, gather.bytes) == (LinkName.INTRA_NODE, 7, 7 * 16_384_000 // 8)


def test_decode_step_is_bound_by_latency() -> None:
    decode = planned(16).decode
    assert decode.tokens == 1
    assert decode.seconds == pytest.approx(160 * (14 * 2e-6 + 2 * 10e-6), rel=0.05)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "slowest"),
    [(1, 1, "none"), (8, 1, "intraNode"), (16, 1, "interNode"), (8, 2, "intraNode"), (1, 2, "intraNode")],
    ids=["one rank", "one node", "tensor over nodes", "stage a node", "stages in a node"],
)
def test_slowest_link_is_named(tensor: int, pipeline: int, slowest: str) -> None:
    status = planned(tensor, pipeline).as_status()
    assert status.slowest_link == slowest
    assert (status.prefill is None) is (slowest == "none")


def test_status_shows_the_slowest_link() -> None:
    status = planned(16).as_status().model_dump(by_alias=True)
    assert status == {
        "slowestLink": "interNode",
        "prefill": {"bytes": "2.4Gi", "time": "55.6ms"},
        "decode": {"bytes": "2.5Mi", "time": "3.25ms"},
    }


@pytest.mark.parametrize(
    ("tensor", "pipeline", "gpus", "nodes", "intra", "inter"),
    [
        (1, 1, 8, 1, 0, 0),
        (8, 1, 8, 1, 0, 0),
        (2, 4, 8, 1, 3, 0),
        (2, 8, 8, 2, 6, 1),
        (3, 3, 8, 2, 1, 1),
        (8, 4, 8, 4, 0, 3),
        (16, 2, 8, 4, 0, 1),
    ],
    ids=[
        "one",
        "node",
        "stages in a node",
        "stages over two",
        "no stage is torn",
        "stage a node",
        "stage of two nodes",
    ],
)
def test_placement(tensor: int, pipeline: int, gpus: int, nodes: int, intra: int, inter: int) -> None:
    placement = Placement.of(tensor, pipeline, gpus)
    assert placement.nodes == nodes
    assert placement.hops == {LinkName.INTRA_NODE: intra, LinkName.INTER_NODE: inter}
    assert nodes_per_replica(ProfileSpec(tensor=tensor, pipeline=pipeline, topology=topology(gpus))) == nodes


def test_without_topology_several_ranks_have_no_plan() -> None:
    assert plan(LLAMA_70B, ProfileSpec(tensor=2)) is None


def test_one_rank_talks_to_nobody_whatever_is_known() -> None:
    spec = ModelSpec.model_validate({"source": {"uri": "builtin://demo"}})
    found = plan_model(spec, None, builtin_shape("demo"))
    assert found is not None
    assert found.slowest_link is LinkName.NONE
    assert found.prefill.seconds == 0


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ParallelismError, match="tensor 3 does not divide"):
        planned(3)


TENSORS, STAGES = st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 2, 3, 8, 20])
BANDWIDTHS = st.sampled_from(["1G", "10G", "50G", "450G"])


@given(tensor=TENSORS, pipeline=STAGES, sequences=st.integers(1, 4096))
def test_more_tokens_never_take_less(tensor: int, pipeline: int, sequences: int) -> None:
    found = planned(tensor, pipeline, sequences=sequences)
    assert found.decode.seconds <= found.full_decode.seconds
    assert found.decode.load(found.slowest_link).bytes <= found.full_decode.load(found.slowest_link).bytes


@given(tensor=TENSORS, pipeline=STAGES, slow=BANDWIDTHS, fast=BANDWIDTHS)
def test_a_faster_link_never_takes_longer(tensor: int, pipeline: int, slow: str, fast: str) -> None:
    if int(slow[:-1]) > int(fast[:-1]):
        slow, fast = fast, slow
    by_slow, by_fast = (planned(tensor, pipeline, links=topology(inter=one)) for one in (slow, fast))
    assert by_fast.prefill.seconds <= by_slow.prefill.seconds
    assert by_fast.prefill.load(LinkName.INTER_NODE).bytes == by_slow.prefill.load(LinkName.INTER_NODE).bytes


@given(tensor=TENSORS, pipeline=STAGES)
def test_links_add_up(tensor: int, pipeline: int) -> None:
    prefill = planned(tensor, pipeline).prefill
    assert sum(link.seconds for link in prefill.links) == pytest.approx(prefill.seconds)
    assert prefill.slowest.seconds == max((link.seconds for link in prefill.links), default=0.0)


@given(tensor=TENSORS, pipeline=STAGES)
def test_only_what_spans_nodes_uses_the_link_between_them(tensor: int, pipeline: int) -> None:
    found = planned(tensor, pipeline)
    assert (found.prefill.load(LinkName.INTER_NODE).bytes > 0) is (found.placement.nodes > 1)


@given(tensor=st.sampled_from([2, 4, 8]))
def test_a_rank_sends_less_than_twice_the_data(tensor: int) -> None:
    whole = 2 * 80 * 1000 * 8192 * 2
    sent = planned(tensor).prefill.load(LinkName.INTRA_NODE).bytes
    assert sent == pytest.approx(2 * (tensor - 1) / tensor * whole)
