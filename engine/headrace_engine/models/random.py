"""Checkpoints with random weights, in the form that model hubs use: for tests and benchmarks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headrace_engine.models.digest import INDEX
from headrace_engine.models.loader import SINGLE
from headrace_wire.shape import ModelShape, read_flag, read_shape


def write_checkpoint(folder: Path, config: Mapping[str, Any], seed: int = 0, shards: int = 1) -> None:
    """Write config.json and safetensors (one file, or several with an index) of a model of this config."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = read_shape(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    tensors = {
        name: _draw(size, generator).to(dtype) for name, size in tensor_shapes(shape, read_flag(config, "mlp_bias"))
    }
    if shards == 1:
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        part = {name: tensors[name] for name in names if weight_map[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1))


def tensor_shapes(shape: ModelShape, mlp_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of a checkpoint of this shape."""
    hidden, inner = shape.hidden, shape.intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, hidden)
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        for name, out, size in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            yield f"{layer}.self_attn.{name}_proj.weight", (out, size)
            if shape.output_bias if name == "o" else shape.attention_bias:
                yield f"{layer}.self_attn.{name}_proj.bias", (out,)
        if shape.qk_norm:
            yield f"{layer}.self_attn.q_norm.weight", (shape.head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (shape.head_dim,)
        for name, out, size in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield f"{layer}.mlp.{name}_proj.weight", (out, size)
            if mlp_bias:
                yield f"{layer}.mlp.{name}_proj.bias", (out,)
    yield "model.norm.weight", (hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, hidden)


def _draw(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices that keep the size of what they are given; vectors near one."""
    if len(size) == 1:
        return 1.0 + 0.1 * torch.randn(size, generator=generator)
    return torch.randn(size, generator=generator) / math.sqrt(size[1])
