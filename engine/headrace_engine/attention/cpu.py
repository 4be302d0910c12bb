"""Attention on the CPU: head-major pages, so that a run of neighbouring pages is one plain matrix per KV head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace_engine.attention.base import AttentionMeta, LayerKv
from headrace_wire.protocol import PAGE_TOKENS

BLOCK = 128  # prompt tokens attended in one call; what lies above the diagonal is skipped beyond it

_sdpa = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class _Row:
    first: int  # new tokens [first, last) of the step
    last: int
    context: int
    page: int  # first page, where all pages are neighbours; else 0
    pages: Tensor | None  # int64 [pages], where they are not


@dataclass(frozen=True)
class _Step:
    rows: list[_Row]
    slots: Tensor
    mask: Tensor | None  # [BLOCK, BLOCK]: 0 on and below the diagonal, -inf above


class CpuAttention:
    """KV as [kv_head, page, 64, D]: the tokens of neighbouring pages follow each other inside a head."""

    def __init__(self, dtype: torch.dtype):
        self._dtype = dtype
        self.layout = "cpu-head-major-64"
        self._mask = torch.full((BLOCK, BLOCK), float("-inf"), dtype=dtype).triu(1)

    def allocate(self, pages: int, kv_heads: int, head_dim: int) -> LayerKv:
        """Zeroed KV of one layer; the operating system backs a page when it is first written."""
        shape = (kv_heads, pages + 1, PAGE_TOKENS, head_dim)
        return LayerKv(torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype))

    def prepare(self, meta: AttentionMeta) -> _Step:
        """Find the rows whose pages are neighbours: they are read in place, others are gathered."""
        starts = meta.query_start.tolist()
        contexts = meta.context_len.tolist()
        table = meta.pages[0]
        straight = _straight(table, meta.context_len)
        firsts = table[:, 0].tolist()
        rows = []
        for r, context in enumerate(contexts):
            pages = None if straight[r] else table[r, : -(-context // PAGE_TOKENS)].long()
            rows.append(_Row(starts[r], starts[r + 1], context, firsts[r] if straight[r] else 0, pages))
        return _Step(rows, meta.slots[0], self._mask if meta.max_query > 1 else None)

    def run(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKv, step: _Step) -> Tensor:
        """Write, then attend row by row."""
        kv_heads, _, _, dim = kv.k.shape
        kv.k.view(kv_heads, -1, dim).index_copy_(1, step.slots, k.transpose(0, 1))
        kv.v.view(kv_heads, -1, dim).index_copy_(1, step.slots, v.transpose(0, 1))
        tokens, heads, _ = q.shape
        # Query heads that share a KV head become rows of one matrix: [tokens, kv_heads, group, D].
        grouped = q.view(tokens, kv_heads, heads // kv_heads, dim)
        out = torch.empty_like(grouped)
        for row in step.rows:
            keys, values = _context(kv.k, row), _context(kv.v, row)
            if row.last - row.first == 1:
                out[row.first] = _sdpa(grouped[row.first].unsqueeze(0), keys, values)[0][0]
            else:
                _prefill(grouped, keys, values, out, row, step.mask)
        return out.view(tokens, heads, dim)


def _straight(table: Tensor, context_len: Tensor) -> list[bool]:
    """Which rows' pages are neighbours in rising order; entries after a row's end do not count."""
    pages, contexts = table.numpy(), context_len.numpy()
    columns = np.arange(pages.shape[1], dtype=pages.dtype)
    beyond = columns >= (contexts[:, None] + PAGE_TOKENS - 1) // PAGE_TOKENS
    straight: list[bool] = ((pages - pages[:, :1] == columns) | beyond).all(1).tolist()
    return straight


def _context(cache: Tensor, row: _Row) -> Tensor:
    """Keys or values of a row, [1, kv_heads, context, D]: a view where the pages are neighbours."""
    kv_heads, pages, size, dim = cache.shape
    if row.pages is None:
        strides = (0, pages * size * dim, dim, 1)
        return cache.as_strided((1, kv_heads, row.context, dim), strides, row.page * size * dim)
    return cache.index_select(1, row.pages).view(1, kv_heads, -1, dim)[:, :, : row.context]


def _prefill(q: Tensor, k: Tensor, v: Tensor, out: Tensor, row: _Row, mask: Tensor | None) -> None:
    """Attend a prompt's new tokens in blocks, each to the context up to its own end."""
    _, kv_heads, group, dim = q.shape
    before = row.context - (row.last - row.first)
    for first in range(row.first, row.last, BLOCK):
        last = min(first + BLOCK, row.last)
        n = last - first
        seen = before + last - row.first
        bias = q.new_zeros(n, seen)
        if mask is not None:
            bias[:, seen - n :] = mask[:n, :n]
        # [1, kv_heads, group * n, D], group-major, so that the mask repeats
        block = q[first:last].permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
        rows = bias.repeat(group, 1).view(1, 1, group * n, seen)
        attended = _sdpa(block, k[:, :, :seen], v[:, :, :seen], attn_mask=rows)[0]
        out[first:last] = attended.view(kv_heads, group, n, dim).permute(2, 0, 1, 3)
