"""Which free pages are handed out: each once, neighbours where there are any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.core.free import FreePages


@pytest.mark.parametrize(
    ("back", "count", "taken"),
    [
        pytest.param([], 3, [11, 12, 13], id="never-used"),
        pytest.param([2, 4, 6], 1, [2], id="single-from-those-given-back"),
        pytest.param([2, 4, 6], 2, [11, 12], id="no-neighbours-given-back"),
        pytest.param([6, 2, 5, 4, 9], 2, [4, 5], id="lowest-neighbours"),
        pytest.param([6, 2, 5, 4, 9], 3, [4, 5, 6], id="whole-run"),
        pytest.param([2, 4, 6, 8, 10], 6, [11, 12, 13, 14, 15, 16], id="all-never-used"),
        pytest.param([2, 4, 6, 8, 10], 7, [2, 4, 6, 8, 10, 11, 12], id="scattered-where-nothing-else-is-left"),
    ],
)
def test_pages_are_neighbours_where_there_are_any(back: list[int], count: int, taken: list[int]) -> None:
    free = FreePages(16)
    assert free.take(10) == list(range(1, 11))
    for page in back:
        free.add(page)
    before = len(free)
    assert free.take(count) == taken
    assert len(free) == before - count


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_every_page_is_in_one_place(total: int, moves: list[tuple[bool, int]]) -> None:
    free, held = FreePages(total), list[int]()
    for back, count in moves:
        if back:
            held.sort(key=lambda page: page * 7 % 11)
            for page in held[:count]:
                free.add(page)
            del held[:count]
        elif count <= len(free):
            held += free.take(count)
        assert sorted([*held, *free]) == list(range(1, total + 1))
        assert len(free) == total - len(held)
