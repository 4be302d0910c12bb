"""Attention on the CPU: head-major pages, so that a run of neighbouring pages is one plain matrix per KV head.

In bfloat16 a token's result is the same to the bit whatever is computed with it: how many pages a call covers follows
from the row (`covered`), what is not seen is hidden by a mask, prompts are cut where pages begin, and the type that a
token is attended in follows from its position and from whether it was generated. So neither the batch nor chunks,
cached pages or recomputing change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headrace_engine.attention.base import AttentionMeta, LayerKv
from headrace_engine.attention.grouping import Group, Ints, Pool, covered, grouped
from headrace_engine.kernels.cpu import Scatter
from headrace_wire.protocol import PAGE_TOKENS

LINE = 64  # bytes of a cache line
BLOCK = PAGE_TOKENS  # prompt tokens attended in one call; what lies above the diagonal is skipped beyond it
TILE = 32  # rows that the kernel multiplies at a time, a task for a thread; fewer would be summed in another order
MASK_STEP = 2048  # tokens by which masks grow
GATHER_BYTES = 4 << 20  # keys and values copied for one call: about what stays in the caches until it is read
WIDE_BYTES = 32 << 20  # keys and values of a prompt's block up to this size are converted to fp32, which is faster

_sdpa = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class CpuLayerKv(LayerKv):
    """`k` and `v` are halves of `both` [2 * kv_heads, pages, 64, D], so that a step writes and gathers them at once."""

    both: Tensor
    lines: Tensor  # `both` as [2 * kv_heads, pages * 64, D]


@dataclass(frozen=True)
class _Decode:
    """Decode rows of one call."""

    group: Group
    rows: slice | Tensor  # of the step's tokens
    pages: Tensor | None  # int64, where they are gathered
    mask: Tensor | None  # [rows, 1, 1, width]: 0 where a row sees, -inf where not


@dataclass(frozen=True)
class _Known:
    """Groups of rows with these block tables, whose contexts end in these columns of them."""

    table: Ints
    pages: Ints
    groups: list[Group]


NOTHING = _Known(np.empty((0, 0), np.int32), np.empty(0, np.int32), [])


@dataclass(frozen=True)
class _Block:
    """Tokens of a row that are attended in one call: [first, last) of its context, none across a page's border."""

    first: int
    last: int
    start: int  # keys from here
    stop: int  # to the end of the tokens' page
    wide: bool  # in fp32

    @property
    def end(self) -> int:
        """Of what the call covers: as much as where a token is decoded, unless it is in fp32."""
        return self.stop if self.wide else self.start + covered((self.stop - self.start) // PAGE_TOKENS) * PAGE_TOKENS


@dataclass(frozen=True)
class _Prompt:
    """A row that is attended in blocks: [first, last) of the step."""

    first: int
    last: int
    blocks: list[_Block]
    count: int  # pages
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
        self._wide_tokens = 0  # keys and values that WIDE_BYTES hold
        self._known = NOTHING
        self._at = torch.empty(0, dtype=torch.int64)  # 0, 1, ... as far as a mask has reached
        self._shown_hidden = torch.zeros((), dtype=dtype), torch.full((), float("-inf"), dtype=dtype)
        self._causal: dict[tuple[torch.dtype, int], Tensor] = {}  # masks by dtype and group
        self._scatter = Scatter() if dtype is torch.bfloat16 else None
        self.layout = "cpu-head-major-64"

    def allocate(self, pages: int, kv_heads: int, head_dim: int) -> CpuLayerKv:
        """Zeroed KV of one layer; the operating system backs a page when it is first written."""
        page = 2 * kv_heads * PAGE_TOKENS * head_dim  # elements
        self._pool, self._known = Pool(pages + 1, max(1, GATHER_BYTES // (page * self._dtype.itemsize))), NOTHING
        self._gathered = torch.empty(self._pool.gathered * page, dtype=self._dtype)
        self._wide_tokens = WIDE_BYTES // (2 * kv_heads * head_dim * torch.float32.itemsize)
        both = _zeros((2 * kv_heads, pages + 1, PAGE_TOKENS, head_dim), self._dtype)
        return CpuLayerKv(both[:kv_heads], both[kv_heads:], both, both.view(2 * kv_heads, -1, head_dim))

    def prepare(self, meta: AttentionMeta) -> _Step:
        """Group the rows that decode; find out which prompts can be read in place."""
        table, contexts = meta.pages[0].numpy(), meta.context_len.numpy()
        generated = np.flatnonzero(contexts[: meta.decode_rows] > meta.prompt_len.numpy()[: meta.decode_rows])
        decodes = []
        if len(generated):
            groups = self._groups(table[generated], contexts[generated])
            decodes = [self._decode(replace(group, rows=generated[group.rows].tolist())) for group in groups]
        alone = set(generated.tolist())
        prompts = [self._prompt(meta, row) for row in range(len(contexts)) if row not in alone]
        return _Step(decodes, prompts, meta.slots[0])

    def _groups(self, table: Ints, contexts: Ints) -> list[Group]:
        """Of the rows that decode: those of the step before, as long as all rows still have the same pages."""
        pages = (contexts - 1) // PAGE_TOKENS
        known = self._window is None and table.shape == self._known.table.shape
        if known and (table == self._known.table).all() and (pages == self._known.pages).all():
            return [replace(group, seen=contexts[group.rows].tolist()) for group in self._known.groups]
        groups = grouped(table, contexts, self._pool, self._window)
        self._known = _Known(table, pages, groups)
        return groups

    def _prompt(self, meta: AttentionMeta, row: int) -> _Prompt:
        first, last = meta.query_start[row : row + 2].tolist()
        context, prompt = int(meta.context_len[row]), int(meta.prompt_len[row])
        blocks = list(self._blocks(context - (last - first), context, prompt))
        held = -(-context // PAGE_TOKENS)
        count = max(block.end for block in blocks) // PAGE_TOKENS
        pages = F.pad(meta.pages[0][row, :held], (0, max(0, count - held)))  # with the dummy page
        page = int(pages[0])
        straight = bool((pages.numpy() == range(page, page + len(pages))).all())
        return _Prompt(first, last, blocks, len(pages), page, None if straight else pages.long())

    def _blocks(self, at: int, end: int, prompt: int) -> Iterator[_Block]:
        """Tokens [at, end) of a row; those of the prompt and those that were generated after it apart."""
        while at < end:
            begin = at // BLOCK * BLOCK
            stop = begin + BLOCK
            last = min(end, stop, prompt if at < prompt else stop)
            start = 0 if self._window is None else max(0, begin + 1 - self._window) // PAGE_TOKENS * PAGE_TOKENS
            yield _Block(at, last, start, stop, at < prompt and stop - start <= self._wide_tokens)
            at = last

    def _decode(self, group: Group) -> _Decode:
        first, count = group.rows[0], len(group.rows)
        neighbours = group.rows == list(range(first, first + count))
        rows = slice(first, first + count) if neighbours else torch.tensor(group.rows)
        pages = None if group.pages is None else torch.from_numpy(group.pages)
        mask = None
        if any(group.hidden) or min(group.seen) < group.width:
            if len(self._at) < group.width:
                self._at = torch.arange(-(-group.width // MASK_STEP) * MASK_STEP)
            at = self._at[: group.width]
            visible = at < torch.tensor(group.seen)[:, None]
            if any(group.hidden):
                visible &= at >= torch.tensor(group.hidden)[:, None]
            mask = torch.where(visible, *self._shown_hidden)[:, None, None]
        return _Decode(group, rows, pages, mask)

    def run(self, qkv: Tensor, kv: LayerKv, step: _Step) -> Tensor:
        """Write, then attend: decode rows by group, prompts one by one. Raises ArithmeticError."""
        if not isinstance(kv, CpuLayerKv):
            raise TypeError(f"KV of another backend: {type(kv).__name__}")
        (tokens, all_heads, dim), kv_heads = qkv.shape, len(kv.k)
        heads = all_heads - 2 * kv_heads
        if self._scatter is not None and qkv.dtype is torch.bfloat16:
            self._scatter(qkv, heads, step.slots, kv.lines)
        else:
            written = qkv[:, heads:]
            if not written.isfinite().all():
                raise ArithmeticError("keys or values are not finite")
            kv.lines.index_copy_(1, step.slots, written.transpose(0, 1))
        q = qkv[:, :heads]
        # Query heads that share a KV head become rows of one matrix: [tokens, kv_heads, group, D].
        q = q.view(tokens, kv_heads, -1, dim)
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
        rows, kv_heads, group, _ = q.shape
        if group == 1:
            q = q.expand(-1, -1, 2, -1)  # one row's products would be summed in another order
        mask = decode.mask
        if rows * kv_heads == 1:  # as would those of a single task, in parts by several threads
            q, keys, values = (x.expand(2, -1, -1, -1) for x in (q, keys, values))
            mask = mask if mask is None else mask.expand(2, -1, -1, -1)
        attended: Tensor = _sdpa(q, keys, values, attn_mask=mask)[0]
        if attended.shape[0] > rows or attended.shape[2] > group:
            attended = attended[:rows, :, :group]
        return attended.contiguous()

    def _prefill(self, q: Tensor, kv: CpuLayerKv, prompt: _Prompt, out: Tensor) -> None:
        """Attend a prompt's new tokens [n, kv_heads, group, D] in blocks, each to the context up to its own end."""
        _, kv_heads, group, dim = q.shape
        keys, values = self._context(kv, prompt)
        low, before = prompt.blocks[0].start, prompt.blocks[0].first
        wide_end = max((block.end for block in prompt.blocks if block.wide), default=low)
        narrow = q, keys[:, :, low:], values[:, :, low:]
        wide = q.float(), keys[:, :, low:wide_end].float(), values[:, :, low:wide_end].float()
        for block in prompt.blocks:
            queries, k, v = wide if block.wide else narrow
            n = block.last - block.first
            seen = slice(block.start - low, block.end - low)
            new = slice(block.first - before, block.last - before)
            # Rows are the tokens of the first query head of each KV head, then those of the second.
            rows = queries[new].permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
            mask, spare = self._bias(k.dtype, group, block), -group * n % (TILE if kv_heads > 1 else 2 * TILE)
            if spare:
                rows, mask = F.pad(rows, (0, 0, 0, spare)), F.pad(mask, (0, 0, 0, spare))
            attended = _sdpa(rows, k[:, :, seen], v[:, :, seen], attn_mask=mask)[0][:, :, : group * n]
            out[new] = attended.reshape(kv_heads, group, n, dim).permute(2, 0, 1, 3)

    def _context(self, kv: CpuLayerKv, prompt: _Prompt) -> tuple[Tensor, Tensor]:
        """Keys and values of a row's pages, [1, kv_heads, pages * 64, D]: views where the pages are neighbours."""
        if prompt.pages is not None:
            return _gather(kv, prompt.pages, 1, self._gathered)
        heads, _, size, _ = kv.both.shape
        both = kv.lines[:, prompt.page * size : (prompt.page + prompt.count) * size].unsqueeze(0)
        return both[:, : heads // 2], both[:, heads // 2 :]

    def _bias(self, dtype: torch.dtype, group: int, block: _Block) -> Tensor:
        """Mask [1, 1, group * tokens, keys] of a block: part of one that is kept for all lengths."""
        seen = block.stop - block.start
        held = self._causal.get((dtype, group))
        if held is None or held.shape[2] < seen:
            held = self._causal[dtype, group] = _causal(-(-seen // MASK_STEP) * MASK_STEP, self._window, group, dtype)
        rows = slice(block.first % BLOCK, block.first % BLOCK + block.last - block.first)
        mask = held[:, rows, held.shape[2] - seen :].reshape(1, 1, -1, seen)
        return F.pad(mask, (0, block.end - block.stop), value=float("-inf")) if block.end > block.stop else mask


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
