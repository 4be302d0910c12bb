"""How `headrace plan` shows its result: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.api.model import Model
from headrace.api.profile import ParallelismProfile
from headrace.api.quantities import show_bytes, show_seconds
from headrace.api.slo import ServiceLevelObjective
from headrace.planning.communication import CommunicationPlan, LinkName, Phase
from headrace.planning.memory import MemoryFit
from headrace_wire.memory import budget_bytes
from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """All that is known of a Model before it runs."""

    model: Model
    profile: ParallelismProfile | None
    slo: ServiceLevelObjective | None
    shape: ModelShape
    origin: str  # where the shape was read
    memory: MemoryFit
    links: CommunicationPlan | None  # None: several ranks, and nothing said about what connects them

    @property
    def ranks(self) -> int:
        """Ranks of one replica."""
        return self.profile.spec.ranks if self.profile else 1

    @property
    def phases(self) -> tuple[tuple[str, Phase], ...]:
        """The phases of the communication plan, with their titles."""
        if self.links is None:
            return ()
        batch = self.links.full_decode
        every = (
            (f"prefill of {self.links.prefill.tokens:,} tokens", self.links.prefill),
            ("decode step of 1 sequence", self.links.decode),
            (f"decode step of {batch.tokens:,} sequences", batch),
        )
        return every if batch.tokens > 1 else every[:2]


def as_text(plans: Sequence[ModelPlan]) -> str:
    """For people."""
    return "\n\n".join("\n".join(_lines(plan)) for plan in plans)


def _lines(plan: ModelPlan) -> Iterator[str]:
    yield f"Model {plan.model.metadata.name}"
    yield from _head(plan)
    yield ""
    yield from _memory(plan)
    yield ""
    yield from _communication(plan)


def _head(plan: ModelPlan) -> Iterator[str]:
    shape = plan.shape
    yield f"  source  {plan.model.spec.source.uri} (shape: {plan.origin})"
    heads = f"{shape.heads} heads, {shape.kv_heads} KV heads of {shape.head_dim}"
    yield (
        f"  shape   {shape.architecture}, {_millions(shape.parameters)} parameters in {shape.dtype}: "
        f"{shape.layers} layers, hidden {shape.hidden}, {heads}"
    )
    if plan.profile is None or plan.ranks == 1:
        yield "  ranks   1"
        return
    spec = plan.profile.spec
    nodes = f", on {_count(plan.links.placement.nodes, 'node')}" if plan.links else ""
    name = plan.profile.metadata.name
    yield f"  ranks   {plan.ranks} = tensor {spec.tensor} x pipeline {spec.pipeline} ({name}){nodes}"
    yield "          This version starts one rank only: the Model would be Stalled with ParallelismUnsupported."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"


def _memory(plan: ModelPlan) -> Iterator[str]:
    fit, part = plan.memory, plan.memory.footprint
    stages = plan.profile.spec.pipeline if plan.profile else 1
    where = "of the rank" if plan.ranks == 1 else f"of the fullest rank (stage {part.stage + 1} of {stages})"
    yield f"  Memory {where}"
    rows: list[tuple[str, int, str]] = []
    if fit.capacity is not None:
        budget = budget_bytes(fit.capacity, fit.memory_percent)
        rows = [("capacity", fit.capacity, ""), ("budget", budget, f"{fit.memory_percent} % of the capacity")]
    rows += [
        ("weights", part.weights, _count(part.layers, "layer")),
        ("overhead", part.overhead, "runtime, and what a full step needs"),
    ]
    if fit.capacity is not None:
        rows.append(("KV pool", fit.pool, f"{fit.pool_pages:,} pages of {PAGE_TOKENS} tokens, one of them a dummy"))
    rows += [
        ("KV per token", part.kv_per_token, ""),
        ("KV per request", fit.pages_per_sequence * part.page_bytes, f"of full length, {fit.max_tokens:,} tokens"),
    ]
    for label, size, note in rows:
        yield f"    {label:<15} {show_bytes(size):>9}   {note}".rstrip()
    yield f"  {fit.verdict.value}: {fit.message}."


def _communication(plan: ModelPlan) -> Iterator[str]:
    yield "  Communication"
    links = plan.links
    if links is None:
        yield "    not known: the ParallelismProfile has no topology."
        return
    if links.slowest_link is LinkName.NONE:
        yield "    none: there is one rank."
        return
    for title, phase in plan.phases:
        yield f"    {title}: {show_seconds(phase.seconds)} on the links"
        for one in phase.traffic:
            sent = f"{_count(one.messages, 'message')}, {show_bytes(one.bytes)}"
            yield f"      {one.link.value:<9} {show_seconds(one.seconds):>7}   {one.what}: {sent}"
    yield f"  Slowest link in prefill: {_slowest(links.prefill)}; in decode: {_slowest(links.decode)}."
    yield from _targets(plan)


def _slowest(phase: Phase) -> str:
    load = phase.slowest
    return f"{load.link.value}, {show_seconds(load.seconds)} of {show_seconds(phase.seconds)}"


def _targets(plan: ModelPlan) -> Iterator[str]:
    """What the links alone take of each class's targets."""
    reference = plan.model.spec.service_level_ref
    if plan.slo is None or plan.links is None:
        if reference:
            yield f"  ServiceLevelObjective {reference.name} is in none of the files: no targets to compare with."
        return
    for row in plan.slo.spec.classes:
        prefill, decode = plan.links.prefill.seconds / row.ttft_s, plan.links.full_decode.seconds / row.tpot_s
        tokens = f"{plan.links.prefill.tokens:,} prompt tokens"
        yield (
            f"  Class {row.name}: the links take {prefill:.0%} of ttft {row.ttft} for {tokens}, "
            f"and {decode:.0%} of tpot {row.tpot} in a full batch."
        )


def as_json(plans: Sequence[ModelPlan]) -> str:
    """For programs: a list with one object per Model; bytes and seconds are numbers."""
    return json.dumps([_object(plan) for plan in plans], indent=2)


def _object(plan: ModelPlan) -> dict[str, Any]:
    fit, part = plan.memory, plan.memory.footprint
    return {
        "model": plan.model.metadata.name,
        "namespace": plan.model.metadata.namespace,
        "source": plan.model.spec.source.uri,
        "shape": {**msgspec.to_builtins(plan.shape), "parameters": plan.shape.parameters},
        "ranks": plan.ranks,
        "memory": {
            "verdict": fit.verdict.value,
            "fits": fit.fits,
            "message": fit.message,
            "capacityBytes": fit.capacity,
            "memoryPercent": fit.memory_percent,
            "weightsBytes": part.weights,
            "overheadBytes": part.overhead,
            "kvBytesPerToken": part.kv_per_token,
            "poolPages": fit.pool_pages,
            "poolBytes": fit.pool,
            "maxTokens": fit.max_tokens,
            "fullLengthSequences": fit.full_length_sequences,
        },
        "communication": None if plan.links is None else _links(plan.links),
    }


def _links(links: CommunicationPlan) -> dict[str, Any]:
    return {
        "nodes": links.placement.nodes,
        "slowestLink": links.slowest_link.value,
        "prefill": _phase(links.prefill),
        "decode": _phase(links.decode),
        "fullDecode": _phase(links.full_decode),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "slowestLink": phase.slowest.link.value,
        "traffic": [
            {
                "what": one.what,
                "link": one.link.value,
                "messages": one.messages,
                "bytes": one.bytes,
                "seconds": one.seconds,
            }
            for one in phase.traffic
        ],
    }
