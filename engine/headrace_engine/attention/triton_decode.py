"""Paged decode attention as a Triton kernel, and the call that launches it.

KV as [page, kv_head, 64, D], keys and values apart: one page of a head is one contiguous tile. Grid (kv_head, row,
split). All query heads of a KV head share a program; they are padded to 16, what a tensor core's tile needs. Each
split attends its share of the pages and leaves a partial sum with its log-sum-exp (base 2), which `combine_kernel`
merges. The next page's number is loaded one iteration ahead, so that the loads of keys and values are pipelined.
"""

# Triton compiles the annotations of a kernel's arguments, so only constexpr ones can have any.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_engine.attention.base import LayerKv
from headrace_wire.protocol import PAGE_TOKENS

MIN_ROWS = 16  # of a tile that tl.dot takes
SPLIT_PAGES = 8  # pages of one split: fixed, so that a row's result does not depend on the batch


@triton.jit
def decode_kernel(
    q_ptr,  # [rows, heads, D]
    k_ptr,  # [pages, kv_heads, PAGE, D]
    v_ptr,
    table_ptr,  # int32 [rows, table_stride]
    context_ptr,  # int32 [rows]
    partial_ptr,  # fp32 [rows, heads, splits, D]
    lse_ptr,  # fp32 [rows, heads, splits], base 2
    scale,  # log2(e) / sqrt(D)
    table_stride,
    kv_heads,
    splits,
    GROUP: tl.constexpr,  # query heads per KV head
    TILE: tl.constexpr,  # GROUP padded
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,  # pages per split
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_ptr + row)
    first = split * SPLIT
    last = tl.minimum(first + SPLIT, tl.cdiv(context, PAGE))

    heads = tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    offsets = tl.arange(0, PAGE)
    query_head = row * kv_heads * GROUP + head * GROUP + heads
    q = tl.load(q_ptr + query_head[:, None] * DIM + dims[None, :], mask=heads[:, None] < GROUP, other=0.0)

    peak = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    sums = tl.zeros([TILE, DIM], tl.float32)
    table = table_ptr + row.to(tl.int64) * table_stride
    page = tl.load(table + first, mask=first < last, other=0)
    for at in range(first, last):
        following = tl.load(table + at + 1, mask=at + 1 < last, other=0)
        base = (page.to(tl.int64) * kv_heads + head) * (PAGE * DIM)
        k = tl.load(k_ptr + base + offsets[None, :] * DIM + dims[:, None])
        v = tl.load(v_ptr + base + offsets[:, None] * DIM + dims[None, :])
        scores = tl.dot(q, k) * scale
        scores = tl.where(at * PAGE + offsets[None, :] < context, scores, float("-inf"))
        peak_now = tl.maximum(peak, tl.max(scores, 1))  # finite: a page in the loop holds a visible token
        weights = tl.exp2(scores - peak_now[:, None])
        keep = tl.exp2(peak - peak_now)
        total = total * keep + tl.sum(weights, 1)
        sums = sums * keep[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = peak_now
        page = following

    empty = first >= last
    out = query_head * splits + split
    tl.store(
        partial_ptr + out[:, None] * DIM + dims[None, :],
        tl.where(empty, 0.0, sums / tl.where(empty, 1.0, total)[:, None]),
        mask=heads[:, None] < GROUP,
    )
    lse = tl.where(empty, float("-inf"), peak + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(lse_ptr + out, lse, mask=heads < GROUP)


@triton.jit
def combine_kernel(
    partial_ptr,  # fp32 [rows * heads, splits, D]
    lse_ptr,  # fp32 [rows * heads, splits]
    out_ptr,  # [rows * heads, D]
    splits,
    WIDTH: tl.constexpr,  # splits padded to a power of two
    DIM: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDTH)
    dims = tl.arange(0, DIM)
    lse = tl.load(lse_ptr + at * splits + part, mask=part < splits, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, 0))  # the first split is never empty, so the maximum is finite
    sums = tl.load(
        partial_ptr + (at * splits + part[:, None]) * DIM + dims[None, :], mask=part[:, None] < splits, other=0.0
    )
    mixed = tl.sum(sums * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out_ptr + at * DIM + dims, mixed.to(out_ptr.dtype.element_ty))


def decode(q: Tensor, kv: LayerKv, table: Tensor, context_len: Tensor, max_context: int) -> Tensor:
    """Attend one new token per row, already written: q [rows, heads, D] -> like q.

    `table`: int32 [rows, pages]; `context_len`: int32 [rows], at least 1; D a power of two from 16 on.
    """
    rows, heads, dim = q.shape
    kv_heads = kv.k.shape[1]
    group = heads // kv_heads
    splits = max(1, -(-max_context // (PAGE_TOKENS * SPLIT_PAGES)))
    partial = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(rows, heads, splits, dtype=torch.float32, device=q.device)
    decode_kernel[(kv_heads, rows, splits)](
        q.contiguous(),
        kv.k,
        kv.v,
        table,
        context_len,
        partial,
        lse,
        1.4426950408889634 / dim**0.5,
        table.stride(0),
        kv_heads,
        splits,
        GROUP=group,
        TILE=max(MIN_ROWS, triton.next_power_of_2(group)),
        DIM=dim,
        PAGE=PAGE_TOKENS,
        SPLIT=SPLIT_PAGES,
        num_warps=4,
        num_stages=3,
    )
    out = torch.empty_like(q)
    combine_kernel[(rows * heads,)](partial, lse, out, splits, WIDTH=triton.next_power_of_2(splits), DIM=dim)
    return out
