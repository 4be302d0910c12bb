"""Attention in plain torch, one row at a time, in fp32: slow and obviously right; backends are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace_engine.attention.base import AttentionMeta, LayerKv
from headrace_wire.protocol import PAGE_TOKENS


class ReferenceAttention:
    """KV as [page, 64, kv_head, D]."""

    layout = "reference"

    def __init__(self, dtype: torch.dtype, window: int | None = None):
        """`window`: a token sees itself and as many before it as make this many; None: all."""
        self._dtype = dtype
        self._window = window

    def allocate(self, pages: int, kv_heads: int, head_dim: int) -> LayerKv:
        """Zeroed KV of one layer."""
        shape = (pages + 1, PAGE_TOKENS, kv_heads, head_dim)
        return LayerKv(torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype))

    def prepare(self, meta: AttentionMeta) -> AttentionMeta:
        """Nothing to prepare."""
        return meta

    def run(self, qkv: Tensor, kv: LayerKv, step: AttentionMeta) -> Tensor:
        """Write, then attend row by row."""
        kv_heads = kv.k.shape[2]
        q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
        kv.k.flatten(0, 1)[step.slots[0]] = k
        kv.v.flatten(0, 1)[step.slots[0]] = v
        out = q.new_empty(q.shape)
        for row, context in enumerate(step.context_len.tolist()):
            first, last = step.query_start[row : row + 2].tolist()
            keys = kv.k[step.pages[0][row].long()].flatten(0, 1)[:context]
            values = kv.v[step.pages[0][row].long()].flatten(0, 1)[:context]
            out[first:last] = attend(q[first:last], keys, values, self._window)
        return out


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal attention of the last len(q) positions: q [n, heads, D], k and v [context, kv_heads, D]; like q."""
    n, heads, dim = q.shape
    context, kv_heads, _ = k.shape
    keys = k.float().repeat_interleave(heads // kv_heads, dim=1)
    values = v.float().repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("nhd,chd->hnc", q.float(), keys) / dim**0.5
    distance = torch.arange(context - n, context)[:, None] - torch.arange(context)[None, :]
    visible = (distance >= 0) & (distance < (window or context))
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hnc,chd->nhd", weights, values).to(q.dtype)
