"""The layers that model families are made of: plain objects over tensors, no module machinery, no autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.loader import Weights

PACK_ROWS = 16  # rows of input that a weight is packed for; one packing serves all sizes


@dataclass(frozen=True)
class Parallel:
    """Sizes of the tensor, pipeline and expert groups. Layers shard by it; one rank is all that runs for now."""

    tp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        if (self.tp, self.pp, self.ep) != (1, 1, 1):
            raise ValueError(f"one rank is supported, got tp={self.tp} pp={self.pp} ep={self.ep}")


@dataclass(frozen=True)
class Rotation:
    """cos and signed sin of the step's positions, [tokens, 1, D]."""

    cos: Tensor
    sin: Tensor  # the first half negated

    def apply(self, x: Tensor) -> Tensor:
        """Rotate [tokens, heads, D]: dimension i is paired with i + D / 2."""
        half = x.shape[-1] // 2
        swapped = torch.cat((x[..., half:], x[..., :half]), -1)
        return torch.addcmul(x * self.cos, swapped, self.sin)


class RotaryTable:
    """cos and sin of every position up to the context length."""

    def __init__(self, config: DecoderConfig, max_tokens: int, dtype: torch.dtype):
        inverse = torch.tensor(config.rope.frequencies(config.shape.head_dim), dtype=torch.float32)
        angles = torch.outer(torch.arange(max_tokens, dtype=torch.float32), inverse)
        self._cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
        self._sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)

    def at(self, positions: Tensor) -> Rotation:
        """Of positions int64 [tokens]."""
        return Rotation(
            self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)
        )


class RmsNorm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float):
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self._weight, self._eps)


class Linear:
    """x W^T + b; `weight` [out, in], several stacked ones make one call.

    The weight is kept in the order that the CPU's matrix kernels read fastest: packed by oneDNN in bfloat16, by columns
    in float32. Both are copies: with `copy` False (a weight that something else keeps anyway) it is used as it is.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, copy: bool = True):
        self._bias = bias
        self._packed: Tensor | None = None
        if copy and weight.dtype is torch.bfloat16 and _packs_bfloat16():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_ROWS)
        elif copy and weight.dtype is torch.float32:
            weight = weight.t().contiguous().t()
        self._weight = weight if self._packed is None else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return packed
        return F.linear(x, self._weight, self._bias)


def _packs_bfloat16() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def stacked(weights: Weights, names: list[str], outs: list[int], size: int, bias: bool) -> Linear:
    """One Linear of several projections of the same input: `names` without their suffix, `outs` their sizes."""
    matrix = torch.cat([weights.get(f"{name}.weight", out, size) for name, out in zip(names, outs, strict=True)])
    if not bias:
        return Linear(matrix)
    return Linear(matrix, torch.cat([weights.get(f"{n}.bias", out) for n, out in zip(names, outs, strict=True)]))


class Mlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        inner = config.shape.intermediate // parallel.tp
        hidden = config.shape.hidden
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up = stacked(weights, names, [inner, inner], hidden, config.mlp_bias)
        self._down = stacked(weights, [f"{prefix}.down_proj"], [hidden], inner, config.mlp_bias)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate).mul_(up))


class AttentionBlock:
    """Projections, rotation and attention of one layer; heads are split over `parallel.tp`."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        shape = config.shape
        self._heads, self._kv_heads = shape.heads // parallel.tp, max(1, shape.kv_heads // parallel.tp)
        self._dim = shape.head_dim
        q, kv = self._heads * self._dim, self._kv_heads * self._dim
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        self._qkv = stacked(weights, names, [q, kv, kv], shape.hidden, shape.attention_bias)
        self._out = stacked(weights, [f"{prefix}.o_proj"], [shape.hidden], q, shape.output_bias)
        self._q_norm = self._k_norm = None
        if shape.qk_norm:
            self._q_norm = RmsNorm(weights.get(f"{prefix}.q_norm.weight", self._dim), config.norm_eps)
            self._k_norm = RmsNorm(weights.get(f"{prefix}.k_norm.weight", self._dim), config.norm_eps)

    def __call__(self, x: Tensor, rotation: Rotation, attention: Attention, kv: LayerKv, step: Any) -> Tensor:
        """x [tokens, hidden] -> [tokens, hidden]."""
        tokens = x.shape[0]
        heads = self._qkv(x).view(tokens, -1, self._dim)
        rotated, v = heads[:, : self._heads + self._kv_heads], heads[:, self._heads + self._kv_heads :]
        if self._q_norm is not None and self._k_norm is not None:
            q, k = rotated[:, : self._heads], rotated[:, self._heads :]
            rotated = torch.cat((self._q_norm(q), self._k_norm(k)), 1)
        rotated = rotation.apply(rotated)
        q, k = rotated[:, : self._heads], rotated[:, self._heads :]
        return self._out(attention.run(q, k, v, kv, step).view(tokens, -1))


class DecoderLayer:
    """Pre-norm attention and MLP, each added to the residual."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        hidden = config.shape.hidden
        self._input_norm = RmsNorm(weights.get(f"{prefix}.input_layernorm.weight", hidden), config.norm_eps)
        self._attention = AttentionBlock(weights, f"{prefix}.self_attn", config, parallel)
        self._post_norm = RmsNorm(weights.get(f"{prefix}.post_attention_layernorm.weight", hidden), config.norm_eps)
        self._mlp = Mlp(weights, f"{prefix}.mlp", config, parallel)

    def __call__(self, x: Tensor, rotation: Rotation, attention: Attention, kv: LayerKv, step: Any) -> Tensor:
        x = x + self._attention(self._input_norm(x), rotation, attention, kv, step)
        return x.add_(self._mlp(self._post_norm(x)))
