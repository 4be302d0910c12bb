"""Decode rows in groups: every row once, nothing hidden that is visible, no view beyond the pool."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.attention.grouping import Group, Pool, grouped
from headrace_wire.protocol import PAGE_TOKENS

GATHERED = 128  # pages


def table_of(rows: list[list[int]]) -> npt.NDArray[np.int32]:
    """Block tables, filled with the dummy page."""
    table = np.zeros((len(rows), max(len(pages) for pages in rows)), np.int32)
    for i, pages in enumerate(rows):
        table[i, : len(pages)] = pages
    return table


def groups_of(
    rows: list[list[int]], contexts: list[int] | None = None, total: int = 1000, window: int | None = None
) -> list[Group]:
    contexts = contexts or [len(pages) * PAGE_TOKENS for pages in rows]
    return grouped(table_of(rows), np.array(contexts, np.int32), Pool(total, GATHERED), window)


IN_PLACE = {
    "one": ([[5, 6]], [[0]]),
    "equal-distances": ([[1, 2], [3, 4], [5, 6]], [[0, 1, 2]]),
    "in-the-order-of-their-pages": ([[5, 6], [1, 2], [3, 4]], [[1, 2, 0]]),
    "with-gaps-between": ([[1, 2], [11, 12], [21, 22]], [[0, 1, 2]]),
    "unequal-distances": ([[1, 2], [3, 4], [9, 10], [15, 16]], [[0, 1], [2, 3]]),
    "of-three-and-four-pages": ([[1, 2, 3], [5, 6, 7, 8]], [[0, 1]]),
    "long-and-short-apart": ([[1], [2, 3, 4, 5, 6]], [[0], [1]]),
}


@pytest.mark.parametrize(("rows", "want"), IN_PLACE.values(), ids=IN_PLACE)
def test_neighbouring_pages_are_read_in_place(rows: list[list[int]], want: list[list[int]]) -> None:
    groups = groups_of(rows)
    assert [group.rows for group in groups] == want
    assert all(group.pages is None for group in groups)


def test_scattered_rows_are_gathered_together_and_filled_with_the_dummy_page() -> None:
    (group,) = groups_of([[7, 3, 5], [9, 2, 8, 4]])
    assert group.pages is not None
    assert group.pages.tolist() == [7, 3, 5, 0, 9, 2, 8, 4]
    assert (group.seen, group.width) == ([192, 256], 256)


def test_a_gather_is_bounded() -> None:
    rows = [list(range(100 * i + 60, 100 * i, -1)) for i in range(5)]
    sizes = [len(group.rows) for group in groups_of(rows)]
    assert sizes == [2, 2, 1]
    assert all(size * 60 <= GATHERED for size in sizes)


def test_no_view_leads_beyond_the_pool() -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7]]
    assert [group.rows for group in groups_of(rows, total=9)] == [[0, 1]]
    assert [group.rows for group in groups_of(rows, total=8)] == [[0], [1]]


def test_pages_before_the_window_are_left_out() -> None:
    (group,) = groups_of([[9, 1, 2, 3]], [4 * PAGE_TOKENS - 10], window=2 * PAGE_TOKENS)
    assert (group.base, group.hidden, group.seen) == (1, [54], [182])


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int | None]:
    """Rows with pages of their own, some straight and some not."""
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    pool = list(range(1, sum(counts) + 1))
    if draw(st.booleans()):
        pool = draw(st.permutations(pool))
    rows, contexts = [], []
    for count in counts:
        rows.append(pool[:count])
        pool = pool[count:]
        contexts.append((count - 1) * PAGE_TOKENS + draw(st.integers(1, PAGE_TOKENS)))
    return rows, contexts, draw(st.none() | st.integers(1, 700))


@given(steps())
def test_every_row_sees_exactly_its_context(step: tuple[list[list[int]], list[int], int | None]) -> None:
    rows, contexts, window = step
    total = sum(len(pages) for pages in rows) + 1
    groups = groups_of(rows, contexts, total, window)
    assert sorted(row for group in groups for row in group.rows) == list(range(len(rows)))
    for group in groups:
        width = -(-group.width // PAGE_TOKENS)
        for i, row in enumerate(group.rows):
            held = (
                [group.base + i * group.stride + n for n in range(width)]
                if group.pages is None
                else group.pages.reshape(len(group.rows), -1)[i].tolist()
            )
            assert max(held) < total
            seen = [(held[t // PAGE_TOKENS], t % PAGE_TOKENS) for t in range(group.hidden[i], group.seen[i])]
            first = max(0, contexts[row] - (window or contexts[row]))
            assert seen == [(rows[row][t // PAGE_TOKENS], t % PAGE_TOKENS) for t in range(first, contexts[row])]
