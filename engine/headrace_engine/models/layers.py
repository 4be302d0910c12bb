"""The layers that model families are made of: plain objects over tensors, no module machinery, no autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.kernels import cpu
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


class Rotary:
    """Rotations by position. They are computed anew for each step: a table would be as long as the longest context."""

    def __init__(self, config: DecoderConfig):
        self._frequencies = torch.tensor(config.rope.frequencies(config.shape.head_dim), dtype=torch.float32)

    def at(self, positions: Tensor) -> Tensor:
        """Cosines and sines, fp32 [tokens, 2, D / 2], of positions int64 [tokens]."""
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.stack((angles.cos(), angles.sin()), 1)


class RmsNorm:
    """x / rms(x) * weight over the last dimension, computed in fp32."""

    def __init__(self, weight: Tensor, eps: float):
        """`weight` [size] or, for heads that have their own, [heads, size]."""
        self.weight, self.eps = weight.clone(), eps  # with a copy nothing refers to the mapped files
        self._call = cpu.Norm(weight, eps) if weight.dtype is torch.bfloat16 and weight.dim() == 1 else self._plain

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _plain(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self.eps).mul_(self.weight)


class HeadRotation:
    """Norms the heads of queries and keys, if the model does, and rotates dimension i with i + D / 2."""

    def __init__(self, heads: int, dim: int, norm: RmsNorm | None, dtype: torch.dtype):
        """`norm`: with a weight [heads, dim]."""
        self._heads, self._dim, self._norm = heads, dim, norm
        self._call: Callable[[Tensor, Tensor], None] = self._plain
        if dtype is torch.bfloat16:
            self._call = cpu.Rotate(heads, dim) if norm is None else cpu.NormRotate(norm.weight, norm.eps)

    def __call__(self, qkv: Tensor, rotation: Tensor) -> None:
        """qkv [tokens, at least heads * dim], in place; `rotation` as `Rotary` gives it."""
        self._call(qkv, rotation)

    def _plain(self, qkv: Tensor, rotation: Tensor) -> None:
        heads = qkv.view(len(qkv), -1, self._dim)[:, : self._heads]
        cos, sin = rotation.unsqueeze(2).unbind(1)
        a, b = (heads if self._norm is None else self._norm(heads)).chunk(2, -1)
        heads.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))


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


def stacked(weights: Weights, names: list[str], outs: list[int], size: int, bias: bool) -> Linear:
    """One Linear of several projections of the same input: `names` without their suffix, `outs` their sizes."""
    matrix = torch.cat([weights.get(f"{name}.weight", out, size) for name, out in zip(names, outs, strict=True)])
    added = torch.cat([weights.get(f"{n}.bias", out) for n, out in zip(names, outs, strict=True)]) if bias else None
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
        self._qkv = stacked(weights, names, [q, kv, kv], shape.hidden, shape.attention_bias)
        self._out = stacked(weights, [f"{prefix}.o_proj"], [shape.hidden], q, shape.output_bias)
        norm = None
        if shape.qk_norm:
            q_norm = weights.get(f"{prefix}.q_norm.weight", self._dim).expand(self._heads, -1)
            k_norm = weights.get(f"{prefix}.k_norm.weight", self._dim).expand(self._kv_heads, -1)
            norm = RmsNorm(torch.cat((q_norm, k_norm)), config.norm_eps)
        self._rotate = HeadRotation(turned, self._dim, norm, weights.dtype)

    def __call__(
        self, x: Tensor, residual: Tensor, rotation: Tensor, attention: Attention, kv: LayerKv, step: Any
    ) -> Tensor:
        """x, residual [tokens, hidden]; their sum after the block."""
        tokens = x.shape[0]
        qkv = self._qkv(x)
        self._rotate(qkv, rotation)
        attended = attention.run(qkv.view(tokens, -1, self._dim), kv, step)
        return self._out.plus(attended.view(tokens, -1), residual)


class DecoderLayer:
    """Pre-norm attention and MLP, each added to the residual."""

    def __init__(self, weights: Weights, prefix: str, config: DecoderConfig, parallel: Parallel):
        hidden = config.shape.hidden
        self._input_norm = RmsNorm(weights.get(f"{prefix}.input_layernorm.weight", hidden), config.norm_eps)
        self._attention = AttentionBlock(weights, f"{prefix}.self_attn", config, parallel)
        self._post_norm = RmsNorm(weights.get(f"{prefix}.post_attention_layernorm.weight", hidden), config.norm_eps)
        self._mlp = Mlp(weights, f"{prefix}.mlp", config, parallel)

    def __call__(self, x: Tensor, rotation: Tensor, attention: Attention, kv: LayerKv, step: Any) -> Tensor:
        x = self._attention(self._input_norm(x), x, rotation, attention, kv, step)
        return self._mlp(self._post_norm(x), x)
