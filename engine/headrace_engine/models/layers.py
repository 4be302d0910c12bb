"""The layers that model families are made of: plain objects over tensors, no module machinery, no autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.loader import Weights

PACK_ROWS = 16  # rows of input that a weight is packed for; one packing serves all sizes
WHOLE_SUM = 1024  # up to so many products oneDNN adds in one go for a single row; more it adds in parts


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
    """The step's positions as turns of a circle, complex64 [tokens, 1, D / 2]."""

    turns: Tensor

    def apply(self, x: Tensor) -> None:
        """Rotate fp32 [tokens, heads, D] in place: dimension 2 i is paired with 2 i + 1 (`paired`)."""
        torch.view_as_complex(x.view(*x.shape[:2], -1, 2)).mul_(self.turns)


class Rotary:
    """Rotations by position. They are computed anew for each step: a table would be as long as the longest context."""

    def __init__(self, config: DecoderConfig):
        self._frequencies = torch.tensor(config.rope.frequencies(config.shape.head_dim), dtype=torch.float32)

    def at(self, positions: Tensor) -> Rotation:
        """Of positions int64 [tokens]."""
        angles = torch.outer(positions.float(), self._frequencies)
        return Rotation(torch.complex(angles.cos(), angles.sin()).unsqueeze(1))


def paired(heads: int, dim: int) -> Tensor:
    """Checkpoints rotate dimension i of a head with i + dim / 2. The order, int64 [heads * dim], that puts them beside
    each other, so that a rotation is one complex product. Queries and keys in the same order have the same products."""
    return torch.arange(heads * dim).view(heads, 2, dim // 2).transpose(1, 2).reshape(-1)


class RmsNorm:
    """x / rms(x) * weight over the last dimension, computed in fp32.

    With n the Euclidean norm of x and s its size: sqrt(n² / s + eps) = hypot(n, sqrt(s eps)) / sqrt(s), and the root of
    s is part of the weight. These few operations take about four fifths of the time of torch's own, made of more.
    """

    def __init__(self, weight: Tensor, eps: float):
        """`weight` [size] or, for heads that have their own, [heads, size]."""
        size = weight.shape[-1]
        self._weight = weight.to(torch.float32, copy=True).mul_(math.sqrt(size))
        self._least = torch.tensor([math.sqrt(size * eps)])

    def __call__(self, x: Tensor) -> Tensor:
        return self.wide(x.float()).to(x.dtype)

    def wide(self, x: Tensor) -> Tensor:
        """fp32 to fp32."""
        return (x / torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._least)).mul_(self._weight)


class Linear:
    """x W^T + b; `weight` [out, in], several stacked ones make one call.

    The weight is kept in the order that the CPU's matrix kernels read fastest: packed by oneDNN in bfloat16, by columns
    in float32. Both are copies, and the original is let go: with `copy` False (a weight that something else keeps
    anyway) it is used as it is.

    In bfloat16 a row's result is the same to the bit beside any others. Where the kernels would sum a row that is alone
    in another order than one beside others, it is computed twice.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, copy: bool = True):
        self._bias = bias
        self._packed: Tensor | None = None
        if copy and weight.dtype is torch.bfloat16 and _packs_bfloat16():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_ROWS)
            self._pointwise = torch.ops.mkldnn._linear_pointwise
        elif copy and weight.dtype is torch.float32:
            weight = weight.t().contiguous().t()
        self._weight = weight if self._packed is None else None
        self._pairs = self._packed is None or weight.shape[1] > WHOLE_SUM

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        """silu(x W^T + b)."""
        return self._apply(x, "swish")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """(x W^T + b) * factor."""
        return self._apply(x, "mul", factor)

    def plus(self, x: Tensor, term: Tensor) -> Tensor:
        """x W^T + b + term."""
        return self._apply(x, "add", term)

    def _apply(self, x: Tensor, after: str, other: Tensor | None = None) -> Tensor:
        if self._pairs and len(x) == 1:
            return self._product(x.expand(2, -1), after, None if other is None else other.expand(2, -1))[:1]
        return self._product(x, after, other)

    def _product(self, x: Tensor, after: str, other: Tensor | None) -> Tensor:
        """x W^T + b, and what comes after it in oneDNN's words."""
        if self._packed is None:
            return _after(F.linear(x, self._weight, self._bias), after, other)
        result: Tensor
        if other is None:
            result = self._pointwise.default(x, self._packed, self._bias, after, [], "")
        else:
            result = self._pointwise.binary(x, other, self._packed, self._bias, after)
        return result


def _after(x: Tensor, after: str, other: Tensor | None) -> Tensor:
    if other is not None:
        return x.mul_(other) if after == "mul" else x.add_(other)
    return F.silu(x, inplace=True) if after == "swish" else x


def _packs_bfloat16() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def stacked(
    weights: Weights, names: list[str], outs: list[int], size: int, bias: bool, order: Tensor | None = None
) -> Linear:
    """One Linear of several projections of the same input: `names` without their suffix, `outs` their sizes; `order`:
    in which their outputs come, int64 [sum of outs]."""
    matrix = torch.cat([weights.get(f"{name}.weight", out, size) for name, out in zip(names, outs, strict=True)])
    added = torch.cat([weights.get(f"{n}.bias", out) for n, out in zip(names, outs, strict=True)]) if bias else None
    if order is not None:
        matrix, added = matrix[order], added if added is None else added[order]
    return Linear(matrix, added)


class Mlp:
    """down(silu(gate(x)) * up(x)); the activation and the product are part of the matrix kernels."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        inner = config.shape.intermediate // parallel.tp
        hidden = config.shape.hidden
        self._gate = stacked(weights, [f"{prefix}.gate_proj"], [inner], hidden, config.mlp_bias)
        self._up = stacked(weights, [f"{prefix}.up_proj"], [inner], hidden, config.mlp_bias)
        self._down = stacked(weights, [f"{prefix}.down_proj"], [hidden], inner, config.mlp_bias)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """x, residual [tokens, hidden]; their sum after the block."""
        return self._down.plus(self._up.times(x, self._gate.silu(x)), residual)


class AttentionBlock:
    """Projections, rotation and attention of one layer; heads are split over `parallel.tp`."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        shape = config.shape
        self._heads, self._kv_heads = shape.heads // parallel.tp, max(1, shape.kv_heads // parallel.tp)
        self._dim = shape.head_dim
        q, kv = self._heads * self._dim, self._kv_heads * self._dim
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        turned = self._heads + self._kv_heads
        order = torch.cat((paired(turned, self._dim), torch.arange(q + kv, q + 2 * kv)))
        self._qkv = stacked(weights, names, [q, kv, kv], shape.hidden, shape.attention_bias, order)
        self._out = stacked(weights, [f"{prefix}.o_proj"], [shape.hidden], q, shape.output_bias)
        self._norm: RmsNorm | None = None
        if shape.qk_norm:
            q_norm = weights.get(f"{prefix}.q_norm.weight", self._dim).expand(self._heads, -1)
            k_norm = weights.get(f"{prefix}.k_norm.weight", self._dim).expand(self._kv_heads, -1)
            joined = torch.cat((q_norm, k_norm)).reshape(-1)[paired(turned, self._dim)]
            self._norm = RmsNorm(joined.view(turned, self._dim), config.norm_eps)

    def __call__(
        self, x: Tensor, residual: Tensor, rotation: Rotation, attention: Attention, kv: LayerKv, step: Any
    ) -> Tensor:
        """x, residual [tokens, hidden]; their sum after the block."""
        tokens = x.shape[0]
        qkv = self._qkv(x).view(tokens, -1, self._dim)
        rotated = qkv[:, : self._heads + self._kv_heads]
        wide = rotated.float()
        if self._norm is not None:
            wide = self._norm.wide(wide)
        rotation.apply(wide)
        rotated.copy_(wide)
        return self._out.plus(attention.run(qkv, kv, step).view(tokens, -1), residual)


class DecoderLayer:
    """Pre-norm attention and MLP, each added to the residual."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        hidden = config.shape.hidden
        self._input_norm = RmsNorm(weights.get(f"{prefix}.input_layernorm.weight", hidden), config.norm_eps)
        self._attention = AttentionBlock(weights, f"{prefix}.self_attn", config, parallel)
        self._post_norm = RmsNorm(weights.get(f"{prefix}.post_attention_layernorm.weight", hidden), config.norm_eps)
        self._mlp = Mlp(weights, f"{prefix}.mlp", config, parallel)

    def __call__(self, x: Tensor, rotation: Rotation, attention: Attention, kv: LayerKv, step: Any) -> Tensor:
        x = self._attention(self._input_norm(x), x, rotation, attention, kv, step)
        return self._mlp(self._post_norm(x), x)
