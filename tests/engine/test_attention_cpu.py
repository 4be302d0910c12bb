"""CPU attention against the reference: decode, prefill and mixed steps, straight and scattered pages, windows."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.attention import cpu
from headrace_engine.attention.base import Attention, AttentionMeta
from headrace_engine.attention.cpu import BLOCK, CpuAttention
from headrace_engine.attention.reference import ReferenceAttention
from headrace_wire.protocol import PAGE_TOKENS

POOL = 40


@dataclass(frozen=True)
class Case:
    """A step: (context before, new tokens) of each row, those with one new token first."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    straight: bool = False
    window: int | None = None
    generated: int = 1  # last tokens of each row that are not of its prompt


CASES = {
    "decode-first-token": Case(((0, 1),)),
    "decode": Case(((100, 1), (63, 1), (64, 1), (5, 1))),
    "decode-straight": Case(((100, 1), (63, 1), (64, 1), (5, 1)), straight=True),
    "prefill-one-token-short-of-a-page": Case(((0, 63),)),
    "prefill": Case(((0, 200),), straight=True),
    "prefill-scattered": Case(((0, 200),)),
    "prefill-a-whole-block": Case(((0, BLOCK),)),
    "prefill-over-a-block": Case(((0, BLOCK + 1),)),
    "chunk": Case(((130, 70),)),
    "chunk-of-two": Case(((70, 2),)),
    "mixed": Case(((300, 1), (1, 1), (0, 130), (64, 64), (17, 5))),
    "mixed-straight": Case(((300, 1), (1, 1), (0, 130), (64, 64), (17, 5)), straight=True),
    "multi-head": Case(((90, 1), (10, 80)), heads=4, kv_heads=4),
    "multi-query": Case(((90, 1), (10, 80)), heads=8, kv_heads=1, dim=64),
    "many-equal-rows": Case(((100, 1),) * 9, straight=True),
    "rows-of-all-sizes": Case(tuple((n, 1) for n in (1, 700, 64, 300, 63, 130, 128, 20)), straight=True),
    "scattered-rows-of-all-sizes": Case(tuple((n, 1) for n in (1, 700, 64, 300, 63, 130, 128, 20))),
    "window-of-decoding-rows": Case(((300, 1), (99, 1), (100, 1), (5, 1), (227, 1)), window=100),
    "window-of-straight-rows": Case(((300, 1), (99, 1), (100, 1), (5, 1), (227, 1)), straight=True, window=100),
    "window-of-a-page": Case(((300, 1), (64, 1), (127, 1)), straight=True, window=PAGE_TOKENS),
    "window-of-one-token": Case(((130, 1), (0, 70)), window=1),
    "window-in-a-prompt": Case(((0, 300),), window=70),
    "window-in-a-chunk": Case(((200, 150),), straight=True, window=70),
    "window-in-a-mixed-step": Case(((300, 1), (1, 1), (0, 130), (64, 64), (190, 5)), window=33),
    "window-wider-than-all": Case(((300, 1), (0, 130)), window=5000),
    "one-token-of-a-prompt": Case(((100, 1), (64, 1), (0, 1)), generated=0),
    "recomputed": Case(((90, 1), (20, 150), (64, 64)), generated=70),
    "window-of-recomputed-rows": Case(((290, 1), (20, 150), (64, 64)), generated=70, window=33),
    "wide-head": Case(((90, 1), (10, 80)), heads=2, kv_heads=1, dim=128),
}


def tables(case: Case) -> torch.Tensor:
    """A block table per row; pages are never shared."""
    counts = [-(-(before + new) // PAGE_TOKENS) for before, new in case.rows]
    pool = torch.arange(1, POOL + 1) if case.straight else torch.randperm(POOL) + 1
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    at = 0
    for row, count in enumerate(counts):
        table[row, :count] = pool[at : at + count]
        at += count
    return table


def meta(case: Case, table: torch.Tensor) -> AttentionMeta:
    counts = [new for _, new in case.rows]
    slots = [
        int(table[r, p // PAGE_TOKENS]) * PAGE_TOKENS + p % PAGE_TOKENS
        for r, (before, new) in enumerate(case.rows)
        for p in range(before, before + new)
    ]
    return AttentionMeta(
        decode_rows=counts.count(1),
        query_start=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32),
        context_len=torch.tensor([before + new for before, new in case.rows], dtype=torch.int32),
        prompt_len=torch.tensor([max(1, sum(row) - case.generated) for row in case.rows], dtype=torch.int32),
        logit_rows=torch.zeros(0, dtype=torch.int64),
        pages=[table],
        slots=[torch.tensor(slots)],
        max_query=max(counts),
        max_context=max(before + new for before, new in case.rows),
    )


def run(backend: Attention, case: Case, table: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Fill the context row by row, then run the step itself; its output."""
    kv = backend.allocate(POOL, case.kv_heads, case.dim)
    for r, (before, _) in enumerate(case.rows):
        if before:
            fill = meta(Case(((0, before),), case.heads, case.kv_heads, case.dim), table[r : r + 1])
            backend.run(inputs[r][:before], kv, backend.prepare(fill))
    new = torch.cat([inputs[r][before:] for r, (before, _) in enumerate(case.rows)])
    return backend.run(new, kv, backend.prepare(meta(case, table)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_equals_the_reference(case: Case, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    table = tables(case)
    heads = case.heads + 2 * case.kv_heads
    inputs = [torch.randn(before + new, heads, case.dim, dtype=dtype) for before, new in case.rows]
    want = run(ReferenceAttention(dtype, case.window), case, table, inputs)
    got = run(CpuAttention(dtype, case.window), case, table, inputs)
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_the_reference_equals_scaled_dot_product_attention() -> None:
    torch.manual_seed(1)
    case = Case(((0, 90),), straight=True)
    qkv = torch.randn(90, 8, 32)
    got = run(ReferenceAttention(torch.float32), case, tables(case), [qkv])
    q, k, v = qkv.transpose(0, 1).split((4, 2, 2))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(got, want.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_other_rows_pages_stay_untouched() -> None:
    backend = CpuAttention(torch.float32)
    kv = backend.allocate(POOL, 2, 32)
    kv.k.fill_(7.0)
    case = Case(((0, 70),), straight=True)
    table = tables(case)
    qkv = torch.randn(70, 8, 32)
    backend.run(qkv, kv, backend.prepare(meta(case, table)))
    assert torch.equal(kv.k[:, 1], qkv[:64, 4:6].transpose(0, 1))
    assert torch.equal(kv.v[:, 2, :6], qkv[64:, 6:].transpose(0, 1))
    assert (kv.k[:, 2, 6:] == 7.0).all()
    assert (kv.k[:, 3:] == 7.0).all()
    assert (kv.k[:, 0] == 7.0).all()


def test_a_prompt_too_large_to_convert_is_attended_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "WIDE_BYTES", 0)
    test_equals_the_reference(CASES["mixed"], torch.bfloat16)
    test_equals_the_reference(CASES["window-in-a-mixed-step"], torch.bfloat16)


def test_a_pool_takes_memory_where_it_is_written() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    kv = CpuAttention(torch.bfloat16).allocate(8192, 8, 128)  # 2 GiB
    assert resident() - before < 64 << 20
    assert kv.both.data_ptr() % 64 == 0
    assert not kv.k[:, [0, 5000, 8192]].any()


def test_kv_of_another_backend_is_refused() -> None:
    case = CASES["decode-first-token"]
    backend = CpuAttention(torch.float32)
    foreign = ReferenceAttention(torch.float32).allocate(POOL, 2, 32)
    with pytest.raises(TypeError, match="another backend"):
        backend.run(torch.randn(1, 8, 32), foreign, backend.prepare(meta(case, tables(case))))


@st.composite
def ways(draw: st.DrawFn) -> tuple[int, int, list[int], int | None]:
    """Tokens of a row, how many of them were generated, where its steps end, and a window."""
    total = draw(st.integers(1, 600))
    generated = draw(st.integers(0, total - 1))
    ends = draw(st.sets(st.integers(1, total), max_size=6)) | {total}
    return total, generated, sorted(ends), draw(st.sampled_from([None, 70]))


def by_steps(case: Case, ends: list[int], table: torch.Tensor, inputs: torch.Tensor, company: int) -> torch.Tensor:
    """The outputs of a row that is computed in steps, each beside so many decoding rows of other lengths."""
    backend = CpuAttention(torch.bfloat16, case.window)
    kv = backend.allocate(POOL, case.kv_heads, case.dim)
    outputs, prompt = [], case.rows[0][1] - case.generated
    for begin, end in pairwise([0, *ends]):
        others = [(40 * (i + 1), 1) for i in range(company)]
        at = 0 if end - begin == 1 else company  # rows with one token come first
        rows = [*others[:at], (begin, end - begin), *others[at:]]
        tables = torch.zeros(len(rows), max(3, table.shape[1]), dtype=torch.int32)
        for i in range(len(rows)):
            tables[i, :3] = torch.arange(POOL - 3 * i - 2, POOL - 3 * i + 1)
        tables[at, : table.shape[1]] = table
        step = meta(replace(case, rows=tuple(rows), generated=1), tables)
        step.prompt_len[at] = prompt
        new = [inputs[begin:end] if row == at else torch.randn_like(inputs[:1]) for row in range(len(rows))]
        first = int(step.query_start[at])
        outputs.append(backend.run(torch.cat(new), kv, backend.prepare(step))[first : first + end - begin])
    return torch.cat(outputs)


@given(ways(), st.integers(0, 3), st.booleans(), st.sampled_from([(4, 2, 32), (12, 4, 64), (2, 2, 64), (4, 1, 64)]))
@settings(max_examples=60, deadline=None)
def test_neither_steps_nor_company_nor_pages_change_a_bit(
    way: tuple[int, int, list[int], int | None], company: int, straight: bool, sizes: tuple[int, int, int]
) -> None:
    total, generated, ends, window = way
    torch.manual_seed(total)
    heads, kv_heads, dim = sizes
    case = Case(((0, total),), heads, kv_heads, dim, generated=generated, window=window)
    inputs = torch.randn(total, case.heads + 2 * case.kv_heads, case.dim, dtype=torch.bfloat16)
    pages = -(-total // PAGE_TOKENS)
    neighbours = torch.arange(1, pages + 1, dtype=torch.int32)[None]
    whole = by_steps(case, [total], neighbours, inputs, 0)
    table = neighbours if straight else (torch.randperm(20)[:pages] + 1).to(torch.int32)[None]
    assert torch.equal(by_steps(case, ends, table, inputs, company), whole)


@settings(max_examples=60)
@given(
    pages=st.lists(st.lists(st.integers(1, POOL - 1), min_size=3, max_size=3, unique=True), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70), st.booleans()), min_size=2, max_size=6),
    window=st.sampled_from([None, 100]),
)
def test_groups_that_are_kept_are_those_that_are_made_anew(
    pages: list[list[int]], steps: list[tuple[int, int, bool]], window: int | None
) -> None:
    kept, table = CpuAttention(torch.bfloat16, window), torch.tensor(pages, dtype=torch.int32)
    kept.allocate(POOL, 2, 64)
    contexts = [20] * len(pages)
    for row, tokens, moves in steps:
        row %= len(pages)
        contexts[row] = min(3 * PAGE_TOKENS, contexts[row] + tokens)
        if moves:
            table = table.roll(1, 1)
        used = -(-max(contexts) // PAGE_TOKENS)
        step = meta(Case(tuple((context - 1, 1) for context in contexts), generated=5), table[:, :used].clone())
        fresh = CpuAttention(torch.bfloat16, window)
        fresh.allocate(POOL, 2, 64)
        for ours, anew in zip(kept.prepare(step).decodes, fresh.prepare(step).decodes, strict=True):
            for field in ("rows", "seen", "hidden", "width", "base", "stride"):
                assert getattr(ours.group, field) == getattr(anew.group, field)
            for one, other in ((ours.mask, anew.mask), (ours.pages, anew.pages)):
                assert (one is None) == (other is None) and (one is None or torch.equal(one, other))
