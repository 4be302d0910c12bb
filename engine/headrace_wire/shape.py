"""The shape of a model: what memory fit, the communication plan and the engine's pool compute from. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MOST = 1 << 40  # that any size is
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1}


class ShapeError(ValueError):
    """A model's config cannot be read; `field` names the key at fault."""

    def __init__(self, field: str, message: str):
        super().__init__(f"config.json: {field}: {message}")
        self.field = field


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder-only transformer with grouped-query attention. Counts are of elements, not of bytes."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int  # tokens
    tied: bool = False  # the LM head is the embedding
    qk_norm: bool = False
    attention_bias: bool = False  # of queries, keys and values
    dtype: str = "bfloat16"  # of the checkpoint

    @property
    def output_bias(self) -> bool:
        """Has attention's output projection a bias, too? Not so in Qwen2."""
        return self.attention_bias and self.architecture != "Qwen2ForCausalLM"

    @property
    def parameters(self) -> int:
        """Number of weights, norms included."""
        embed = self.vocab * self.hidden * (1 if self.tied else 2)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        if self.attention_bias:
            attention += q + 2 * kv
        if self.output_bias:
            attention += self.hidden
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return embed + self.layers * (attention + 3 * self.hidden * self.intermediate + norms) + self.hidden

    def kv_elements_per_token(self, tp: int = 1) -> int:
        """KV elements of one token on one rank: KV heads are split over `tp` ranks, and replicated where too few."""
        return 2 * self.layers * max(1, -(-self.kv_heads // tp)) * self.head_dim


BUILTIN_SHAPES = {
    "demo": ModelShape(
        architecture="LlamaForCausalLM",
        layers=3,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        intermediate=512,
        vocab=1536,
        max_positions=2048,
        tied=True,
        dtype="bfloat16",
    ),
}
"""Shapes of the models inside the engine's package, by name."""


def builtin_shape(name: str) -> ModelShape:
    """The shape of `builtin://name`. Raises ValueError for an unknown name."""
    if name not in BUILTIN_SHAPES:
        raise ValueError(f"builtin://{name} is unknown; known: {', '.join(sorted(BUILTIN_SHAPES))}")
    return BUILTIN_SHAPES[name]


def _integer(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if value is None:
        raise ShapeError(field, "is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise ShapeError(field, f"must be a positive integer up to {MOST}, got {value!r:.50}")
    return value


def read_flag(config: Mapping[str, Any], field: str) -> bool:
    """A switch that is off where it is absent or null. Raises ShapeError for what is not true or false."""
    value = config.get(field)
    if value is not None and not isinstance(value, bool):
        raise ShapeError(field, f"must be true or false, got {value!r}")
    return bool(value)


def read_window(config: Mapping[str, Any], architecture: str) -> int | None:
    """Tokens that one attends to, itself included: Mistral's window, None where there is none.

    Raises ShapeError. The others name a window too, but say with `use_sliding_window` that it is off.
    """
    if architecture != "MistralForCausalLM" or config.get("sliding_window") is None:
        return None
    return _integer(config, "sliding_window")


def _attention_bias(config: Mapping[str, Any], architecture: str) -> bool:
    """Qwen2 always has biases, Mistral never; neither says so in its config."""
    if architecture in ("MistralForCausalLM", "Qwen2ForCausalLM"):
        return architecture == "Qwen2ForCausalLM"
    return read_flag(config, "attention_bias")


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a Hugging Face `config.json`. Raises ShapeError naming the field."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ShapeError("architectures", "must be a list with one name")
    if names[0] not in ARCHITECTURES:
        raise ShapeError("architectures", f"{names[0]} is not supported; supported: {', '.join(ARCHITECTURES)}")
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    kv_heads = _integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ShapeError("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    head_dim = _integer(config, "head_dim", max(1, hidden // heads))
    if head_dim % 2:
        raise ShapeError("head_dim", f"must be even, as pairs of it are rotated, got {head_dim}")
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ShapeError("dtype", f"{dtype!r} is not supported; supported: {', '.join(DTYPE_BYTES)}")
    read_window(config, names[0])  # raises; KV is kept and charged for the whole context
    return ModelShape(
        architecture=names[0],
        layers=_integer(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=_integer(config, "intermediate_size"),
        vocab=_integer(config, "vocab_size"),
        max_positions=_integer(config, "max_position_embeddings"),
        tied=read_flag(config, "tie_word_embeddings"),
        qk_norm=names[0] == "Qwen3ForCausalLM",
        attention_bias=_attention_bias(config, names[0]),
        dtype=dtype,
    )


class Termination(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What engine containers write to their termination log as JSON.

    The init container writes `shape` and `revision` when the source is valid; a failing container writes `reason`
    (CamelCase, becomes a condition's reason), `file` and `message`.
    """

    reason: str = ""
    file: str = ""
    message: str = ""
    shape: ModelShape | None = None
    revision: str = ""
    digest: str = ""
    weights_bytes: int = 0  # of the safetensors files
