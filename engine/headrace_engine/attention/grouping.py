"""Which decode rows are attended in one call: rows whose pages are one strided view, or are gathered together.

A row whose pages are neighbours is a plain matrix inside a KV head. Rows whose first pages lie equally far apart are
one view with a stride, read in place; rows on scattered pages are copied together. What a row of a group does not see
is hidden by a mask. Rows of one group have page counts between two powers of two, so that about half of what is
computed is hidden at most. How much a call covers beyond a row's end never changes what the row gives: the kernel takes
512 tokens at a time; up to 256 it sums in one order whatever it covers, beyond that the row alone tells (`covered`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace_wire.protocol import PAGE_TOKENS

Ints = npt.NDArray[np.int32]
KERNEL_PAGES = 8  # of 64 tokens, that the kernel takes at a time
EXACT_PAGES = 4  # up to which its sums are the same whatever it covers


@dataclass(frozen=True)
class Group:
    """Rows of one call. Each sees the tokens from its `hidden` to its `seen`, counted from its first page."""

    rows: list[int]
    seen: list[int]
    hidden: list[int]  # fewer than two pages; more than 0 only beside a window
    pages: npt.NDArray[np.int64] | None  # [rows * most pages], the dummy page after a row's end; None: read in place
    width: int  # tokens that the call covers for each row: whole pages
    base: int = 0  # first page of the first row
    stride: int = 0  # pages from one row's first to the next one's


@dataclass(frozen=True)
class _Rows:
    """All decode rows: first visible page in the table, number of pages from there, tokens."""

    first: Ints
    count: Ints
    hidden: Ints
    seen: Ints
    base: Ints  # number of the first visible page
    straight: npt.NDArray[np.bool_]  # are the pages neighbours in rising order?

    @property
    def covered(self) -> Ints:
        """Pages that a call covers at least."""
        return np.array([covered(count) for count in self.count.tolist()], np.int32)


@dataclass(frozen=True)
class Pool:
    """What bounds a group."""

    pages: int  # with the dummy; no view leads beyond them
    gathered: int  # pages copied for one call; a row with more of them is alone


def covered(count: int) -> int:
    """Pages that a call covers for a row of so many: no more if they are few, else whole turns of the kernel."""
    return count if count <= EXACT_PAGES else -(-count // KERNEL_PAGES) * KERNEL_PAGES


def grouped(table: Ints, contexts: Ints, pool: Pool, window: int | None = None) -> list[Group]:
    """Every row in one group."""
    rows = _visible(table, contexts, window)
    wide = rows.covered
    rows = replace(rows, straight=rows.straight & (rows.base + wide <= pool.pages))
    groups: list[Group] = []
    size = np.ceil(np.log2(rows.count)).astype(np.int64)  # 1, 2, 3-4, 5-8, ... pages
    straight = np.flatnonzero(rows.straight)
    order = straight[np.lexsort((rows.base[straight], size[straight]))].tolist()
    sizes, bases = size.tolist(), rows.base.tolist()
    for chosen in _progressions(order, sizes, bases):
        groups += _in_place(rows, chosen, pool.pages)
    scattered = np.flatnonzero(~rows.straight)
    order = scattered[np.argsort(rows.count[scattered], kind="stable")].tolist()
    for chosen in _packs(order, sizes, wide, pool.gathered):
        groups.append(_gathered(rows, chosen, table))
    return groups


def _visible(table: Ints, contexts: Ints, window: int | None) -> _Rows:
    """A row begins at the page that the first token of its last page sees first, as the block of a prompt does."""
    skipped, first = np.zeros_like(contexts), np.zeros_like(contexts)
    if window is not None:
        skipped = np.maximum(contexts - window, 0)
        first = np.maximum((contexts - 1) // PAGE_TOKENS * PAGE_TOKENS + 1 - window, 0) // PAGE_TOKENS
    count = (contexts + PAGE_TOKENS - 1) // PAGE_TOKENS - first
    base = table[np.arange(len(table)), first]
    columns = np.arange(table.shape[1], dtype=table.dtype)
    outside = (columns < first[:, None]) | (columns >= (first + count)[:, None])
    straight = ((table - base[:, None] == columns - first[:, None]) | outside).all(1)
    return _Rows(first, count, skipped - first * PAGE_TOKENS, contexts - first * PAGE_TOKENS, base, straight)


def _progressions(order: list[int], sizes: list[int], bases: list[int]) -> Iterator[list[int]]:
    """Cut rows sorted by size and first page where the distance of first pages changes."""
    chosen: list[int] = []
    for row in order:
        if chosen and (
            sizes[row] != sizes[chosen[0]]
            or (len(chosen) > 1 and bases[row] - bases[chosen[-1]] != bases[chosen[1]] - bases[chosen[0]])
        ):
            yield chosen
            chosen = []
        chosen.append(row)
    if chosen:
        yield chosen


def _in_place(rows: _Rows, chosen: list[int], total: int) -> Iterator[Group]:
    """One group; the last row apart where the others' width would lead beyond the pool."""
    bases = rows.base[chosen].tolist()
    most = max(covered(count) for count in rows.count[chosen].tolist())
    if len(chosen) > 1 and bases[-1] + most > total:
        yield from _in_place(rows, chosen[:-1], total)
        yield from _in_place(rows, chosen[-1:], total)
        return
    stride = bases[1] - bases[0] if len(bases) > 1 else 0
    seen, hidden = rows.seen[chosen].tolist(), rows.hidden[chosen].tolist()
    yield Group(chosen, seen, hidden, None, most * PAGE_TOKENS, bases[0], stride)


def _packs(order: list[int], sizes: list[int], counts: Ints, most: int) -> Iterator[list[int]]:
    """Cut rows sorted by their number of pages so that one size fills at most `most` pages."""
    chosen: list[int] = []
    for row in order:
        if chosen and (sizes[row] != sizes[chosen[0]] or int(counts[row]) * (len(chosen) + 1) > most):
            yield chosen
            chosen = []
        chosen.append(row)
    if chosen:
        yield chosen


def _gathered(rows: _Rows, chosen: list[int], table: Ints) -> Group:
    count = rows.count[chosen]
    columns = np.arange(max(covered(each) for each in count.tolist()))
    at = np.minimum(rows.first[chosen][:, None] + columns, table.shape[1] - 1)
    pages = np.where(columns < count[:, None], table[np.array(chosen)[:, None], at], 0)
    width = len(columns) * PAGE_TOKENS
    numbers = pages.reshape(-1).astype(np.int64)
    return Group(chosen, rows.seen[chosen].tolist(), rows.hidden[chosen].tolist(), numbers, width)
