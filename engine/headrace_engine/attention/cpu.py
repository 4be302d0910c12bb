"""Attention on the CPU: head-major pages, so that a run of neighbouring pages is one plain matrix per KV head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace_engine.attention.base import AttentionMeta, LayerKv
from headrace_engine.attention.grouping import Group, Pool, grouped
from headrace_wire.protocol import PAGE_TOKENS

LINE = 64  # bytes of a cache line
BLOCK = 64  # prompt tokens attended in one call; what lies above the diagonal is skipped beyond it
MASK_STEP = 2048  # tokens by which the mask of prompts grows
GATHER_BYTES = 4 << 20  # keys and values copied for one call: about what stays in the caches until it is read
WIDE_BYTES = 32 << 20  # keys and values of a prompt's context up to this size are converted to fp32, which is faster

_sdpa = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class CpuLayerKv(LayerKv):
    """`k` and `v` are halves of `both` [2 * kv_heads, pages, 64, D], so that a step writes and gathers them at once."""

    both: Tensor


@dataclass(frozen=True)
class _Decode:
    """Decode rows of one call."""

    group: Group
    rows: slice | Tensor  # of the step's tokens
    pages: Tensor | None  # int64, where they are gathered
    mask: Tensor | None  # [rows, 1, 1, width]: 0 where a row sees, -inf where not


@dataclass(frozen=True)
class _Prompt:
    """A row with several new tokens: [first, last) of the step."""

    first: int
    last: int
    context: int
    page: int  # first page, where all pages are neighbours; else 0
    pages: Tensor | None  # int64 [pages], where they are not


@dataclass(frozen=True)
class _Step:
    decodes: list[_Decode]
    prompts: list[_Prompt]
    slots: Tensor


class CpuAttention:
    """KV as [kv_head, page, 64, D]: the tokens of neighbouring pages follow each other inside a head."""

    def __init__(self, dtype: torch.dtype, window: int | None = None):
        """`window`: a token sees itself and as many before it as make this many; None: all."""
        self._dtype = dtype
        self._window = window
        self._pool = Pool(0, 1)
        self._gathered = torch.empty(0, dtype=dtype)  # reused from call to call
        self._causal: dict[tuple[torch.dtype, int], Tensor] = {}  # masks by dtype and group
        self.layout = "cpu-head-major-64"

    def allocate(self, pages: int, kv_heads: int, head_dim: int) -> CpuLayerKv:
        """Zeroed KV of one layer; the operating system backs a page when it is first written."""
        page = 2 * kv_heads * PAGE_TOKENS * head_dim  # elements
        self._pool = Pool(pages + 1, max(1, GATHER_BYTES // (page * self._dtype.itemsize)))
        self._gathered = torch.empty(self._pool.gathered * page, dtype=self._dtype)
        both = _zeros((2 * kv_heads, pages + 1, PAGE_TOKENS, head_dim), self._dtype)
        return CpuLayerKv(both[:kv_heads], both[kv_heads:], both)

    def prepare(self, meta: AttentionMeta) -> _Step:
        """Group the rows that decode; find out which prompts can be read in place."""
        table, contexts = meta.pages[0].numpy(), meta.context_len.numpy()
        decodes = []
        if meta.decode_rows:
            groups = grouped(table[: meta.decode_rows], contexts[: meta.decode_rows], self._pool, self._window)
            decodes = [self._decode(group) for group in groups]
        starts = meta.query_start.tolist()
        prompts = []
        for row in range(meta.decode_rows, len(contexts)):
            context = int(contexts[row])
            pages = meta.pages[0][row, : -(-context // PAGE_TOKENS)]
            first = int(pages[0])
            straight = bool((pages.numpy() == range(first, first + len(pages))).all())
            prompts.append(
                _Prompt(starts[row], starts[row + 1], context, first, None if straight else pages.long()),
            )
        return _Step(decodes, prompts, meta.slots[0])

    def _decode(self, group: Group) -> _Decode:
        first, count = group.rows[0], len(group.rows)
        neighbours = group.rows == list(range(first, first + count))
        rows = slice(first, first + count) if neighbours else torch.tensor(group.rows)
        pages = None if group.pages is None else torch.from_numpy(group.pages)
        mask = None
        if any(group.hidden) or min(group.seen) < group.width:
            at = torch.arange(group.width)
            visible = at < torch.tensor(group.seen)[:, None]
            if any(group.hidden):
                visible &= at >= torch.tensor(group.hidden)[:, None]
            mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, float("-inf"))[:, None, None]
        return _Decode(group, rows, pages, mask)

    def run(self, qkv: Tensor, kv: LayerKv, step: _Step) -> Tensor:
        """Write, then attend: decode rows by group, prompts one by one."""
        if not isinstance(kv, CpuLayerKv):
            raise TypeError(f"KV of another backend: {type(kv).__name__}")
        kv_heads, _, _, dim = kv.k.shape
        tokens = qkv.shape[0]
        new = qkv[:, -2 * kv_heads :].transpose(0, 1)
        kv.both.view(2 * kv_heads, -1, dim).index_copy_(1, step.slots, new)
        # Query heads that share a KV head become rows of one matrix: [tokens, kv_heads, group, D].
        q = qkv[:, : -2 * kv_heads].unflatten(1, (kv_heads, -1))
        heads = qkv.shape[1] - 2 * kv_heads
        if len(step.decodes) == 1 and not step.prompts and isinstance(step.decodes[0].rows, slice):
            return self._attend(q, kv, step.decodes[0]).reshape(tokens, heads, dim)
        out = torch.empty(q.shape, dtype=q.dtype)
        for decode in step.decodes:
            out[decode.rows] = self._attend(q[decode.rows], kv, decode)
        for prompt in step.prompts:
            self._prefill(q[prompt.first : prompt.last], kv, prompt, out[prompt.first : prompt.last])
        return out.view(tokens, heads, dim)

    def _attend(self, q: Tensor, kv: CpuLayerKv, decode: _Decode) -> Tensor:
        """q [rows, kv_heads, group, D]; like q."""
        if decode.pages is None:
            keys, values = _view(kv, decode)
        else:
            keys, values = _gather(kv, decode.pages, len(decode.group.rows), self._gathered)
        attended: Tensor = _sdpa(q, keys, values, attn_mask=decode.mask)[0]
        return attended

    def _prefill(self, q: Tensor, kv: CpuLayerKv, prompt: _Prompt, out: Tensor) -> None:
        """Attend a prompt's new tokens [n, kv_heads, group, D] in blocks, each to the context up to its own end."""
        total, kv_heads, group, dim = q.shape
        keys, values = self._context(kv, prompt)
        before = prompt.context - total
        low = 0 if self._window is None else max(0, before + 1 - self._window)  # what comes before is not seen
        keys, values = keys[:, :, low:], values[:, :, low:]
        if keys.shape[2] * kv_heads * dim * 8 <= WIDE_BYTES:
            q, keys, values = q.float(), keys.float(), values.float()
        for first in range(0, total, BLOCK):
            n = min(BLOCK, total - first)
            last = before + first + n - low
            start = 0 if self._window is None else max(0, last - n + 1 - self._window)
            # Rows are the tokens of the first query head of each KV head, then those of the second.
            block = q[first : first + n].permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
            mask = self._bias(keys.dtype, group, n, last - start)
            attended = _sdpa(block, keys[:, :, start:last], values[:, :, start:last], attn_mask=mask)[0]
            out[first : first + n] = attended.view(kv_heads, group, n, dim).permute(2, 0, 1, 3)

    def _context(self, kv: CpuLayerKv, prompt: _Prompt) -> tuple[Tensor, Tensor]:
        """Keys and values of a prompt, [1, kv_heads, context, D]: views where the pages are neighbours."""
        if prompt.pages is not None:
            keys, values = _gather(kv, prompt.pages, 1, self._gathered)
            return keys[:, :, : prompt.context], values[:, :, : prompt.context]
        heads, _, size, dim = kv.both.shape
        first = prompt.page * size
        both = kv.both.view(heads, -1, dim)[:, first : first + prompt.context].unsqueeze(0)
        return both[:, : heads // 2], both[:, heads // 2 :]

    def _bias(self, dtype: torch.dtype, group: int, n: int, seen: int) -> Tensor:
        """Mask [1, 1, group * n, seen] of the last n of `seen` tokens: part of one that is kept for all lengths."""
        held = self._causal.get((dtype, group))
        if held is None or held.shape[2] < seen + BLOCK - n:
            width = -(-(seen + BLOCK) // MASK_STEP) * MASK_STEP
            held = self._causal[dtype, group] = _causal(width, self._window, group, dtype)
        width = held.shape[2] - BLOCK + n
        return held[:, :n, width - seen : width].reshape(1, 1, group * n, seen)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written, unlike torch's own; aligned to a cache line."""
    count = math.prod(shape) * dtype.itemsize
    held = np.zeros(count + LINE, np.uint8)
    first = -held.ctypes.data % LINE
    return torch.from_numpy(held[first : first + count]).view(dtype).view(shape)


def _causal(width: int, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
    """[group, BLOCK, width]: what the last BLOCK of `width` tokens see, `group` times."""
    mask = torch.zeros(group, BLOCK, width, dtype=dtype)
    first = 0 if window is not None else width - BLOCK  # without a window all sees what comes before the block
    distance = torch.arange(width - BLOCK, width)[:, None] - torch.arange(first, width)
    mask[:, :, first:].masked_fill_((distance < 0) | (distance >= (window or width)), float("-inf"))
    return mask


def _view(kv: CpuLayerKv, decode: _Decode) -> tuple[Tensor, Tensor]:
    """Keys and values [rows, kv_heads, width, D] in place."""
    kv_heads, pages, size, dim = kv.k.shape
    page = size * dim
    shape = (len(decode.group.rows), kv_heads, decode.group.width, dim)
    strides = (decode.group.stride * page, pages * page, dim, 1)
    at = decode.group.base * page
    return (
        kv.k.as_strided(shape, strides, kv.k.storage_offset() + at),
        kv.v.as_strided(shape, strides, kv.v.storage_offset() + at),
    )


def _gather(kv: CpuLayerKv, pages: Tensor, rows: int, into: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [rows, kv_heads, width, D], copied, if they fit into `into`."""
    heads, _, size, dim = kv.both.shape
    count = heads * len(pages) * size * dim
    fits = count <= len(into)
    room = into[:count].view(heads, len(pages), size, dim) if fits else kv.both.new_empty(heads, len(pages), size, dim)
    both = torch.index_select(kv.both, 1, pages, out=room).view(heads, rows, -1, dim).transpose(0, 1)
    return both[:, : heads // 2], both[:, heads // 2 :]
