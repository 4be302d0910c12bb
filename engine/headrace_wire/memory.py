"""The arithmetic of an engine's memory: one source for the operator's fit and for the size of the engine's pool.

All counts are bytes on one rank. A rank holds: weights, what a step needs beside them (`overhead`), and the pool of
KV pages, which gets the rest. No torch, no I/O.
"""

from __future__ import annotations

import msgspec

from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.shape import DTYPE_BYTES, ModelShape

RUNTIME_BYTES_CPU = 448 * 2**20  # interpreter, torch and both processes of an engine on a CPU; 370 Mi were measured
RUNTIME_BYTES_ACCELERATOR = 1536 * 2**20  # device context, libraries' workspaces, communicators
LOGIT_BYTES = 24  # of one logit while sampling: float32 logits, probabilities and noise, and copies of them
STEP_SLACK_BYTES = 64 * 2**20  # index tensors, fragmentation


class ParallelismError(ValueError):
    """A model of this shape cannot be split so."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine runs a model, as far as its memory depends on it."""

    dtype: str = "auto"  # of weights, activations and KV; auto: see element_bytes
    tensor: int = 1  # ranks that share each layer
    pipeline: int = 1  # stages that share the layers
    max_sequences: int = 64
    max_batch_tokens: int = 2048
    accelerator: bool = False


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank of one pipeline stage needs, in bytes."""

    stage: int
    layers: int
    weights: int
    kv_per_token: int  # over the stage's layers
    runtime: int  # what the engine's processes hold besides; an estimate, where the engine itself measures
    step: int  # what a full step needs besides

    @property
    def overhead(self) -> int:
        """All but weights and KV."""
        return self.runtime + self.step

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of KV."""
        return PAGE_TOKENS * self.kv_per_token

    def pages(self, budget: int) -> int:
        """Pages of KV (the dummy page 0 included) that fit beside the rest in `budget` bytes; 0 if none."""
        return max(0, (budget - self.weights - self.overhead) // self.page_bytes)


def element_bytes(shape: ModelShape, dtype: str = "auto") -> int:
    """Bytes of one number. auto: a float32 checkpoint runs as it is, all others in bfloat16. Raises ValueError."""
    name = dtype
    if dtype == "auto":
        name = "float32" if shape.dtype == "float32" else "bfloat16"
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {name!r} is unknown; known: auto, {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]


def budget_bytes(capacity: int, memory_percent: int) -> int:
    """Bytes of `capacity` that the engine may use."""
    return capacity * memory_percent // 100


def stage_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each stage: as even as can be, the larger shares last but in order of the layers."""
    return tuple(layers * (i + 1) // pipeline - layers * i // pipeline for i in range(pipeline))


def check_degrees(shape: ModelShape, tensor: int, pipeline: int) -> None:
    """Raise ParallelismError unless heads, KV heads, MLP and layers can be split so.

    KV heads are split, or each is held by several ranks where there are fewer of them than ranks.
    """
    if shape.heads % tensor:
        raise ParallelismError(f"tensor {tensor} does not divide the model's {shape.heads} attention heads")
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        raise ParallelismError(f"tensor {tensor} and the model's {shape.kv_heads} KV heads do not divide each other")
    if shape.intermediate % tensor:
        raise ParallelismError(f"tensor {tensor} does not divide the model's MLP width {shape.intermediate}")
    if pipeline > shape.layers:
        raise ParallelismError(f"pipeline {pipeline} exceeds the model's {shape.layers} layers")


def _layer_weights(shape: ModelShape, tensor: int) -> int:
    """Elements of one layer on one rank: matrices are split, KV heads replicated where too few, norms whole."""
    q = shape.heads * shape.head_dim // tensor
    kv = -(-shape.kv_heads // tensor) * shape.head_dim
    attention = shape.hidden * (q + 2 * kv) + q * shape.hidden
    if shape.attention_bias:
        attention += q + 2 * kv
    if shape.output_bias:
        attention += shape.hidden
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    return attention + 3 * shape.hidden * shape.intermediate // tensor + norms


def _stage_weights(shape: ModelShape, load: Load, stage: int, layers: int) -> int:
    """Elements of a stage on one rank; the embedding stands first, norm and head last (shared if tied on one stage)."""
    embedding = -(-shape.vocab // load.tensor) * shape.hidden
    first, last = stage == 0, stage == load.pipeline - 1
    tables = 1 if first and last and shape.tied else int(first) + int(last)
    return layers * _layer_weights(shape, load.tensor) + tables * embedding + (shape.hidden if last else 0)


def step_bytes(shape: ModelShape, load: Load) -> int:
    """A bound of a full step's own memory: activations of the widest layer, and sampling for every sequence."""
    width = 6 * shape.hidden + 3 * shape.intermediate // load.tensor
    activations = load.max_batch_tokens * width * element_bytes(shape, load.dtype)
    return activations + load.max_sequences * shape.vocab * LOGIT_BYTES + STEP_SLACK_BYTES


def footprints(shape: ModelShape, load: Load) -> tuple[Footprint, ...]:
    """One entry per pipeline stage. Raises ParallelismError."""
    check_degrees(shape, load.tensor, load.pipeline)
    size, step = element_bytes(shape, load.dtype), step_bytes(shape, load)
    runtime = RUNTIME_BYTES_ACCELERATOR if load.accelerator else RUNTIME_BYTES_CPU
    kv_per_layer = shape.kv_elements_per_token(load.tensor) // shape.layers * size
    return tuple(
        Footprint(
            stage=stage,
            layers=layers,
            weights=_stage_weights(shape, load, stage, layers) * size,
            kv_per_token=layers * kv_per_layer,
            runtime=runtime,
            step=step,
        )
        for stage, layers in enumerate(stage_layers(shape.layers, load.pipeline))
    )


def fullest(shape: ModelShape, load: Load, budget: int) -> Footprint:
    """The stage with room for the fewest pages in `budget` bytes: all stages hold the same pages. ParallelismError."""
    return min(footprints(shape, load), key=lambda one: (one.pages(budget), -one.weights))
