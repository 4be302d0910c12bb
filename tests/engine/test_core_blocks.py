"""The block pool: states of pages, eviction order, the fence, the prefix index."""

from __future__ import annotations

import pytest

from headrace_engine.core.blocks import BlockPool, Eviction


def key(name: str) -> bytes:
    return name.encode()


def chain(pool: BlockPool, names: str) -> list[int]:
    """Pages of a finished request whose blocks have these one-letter keys."""
    pages = pool.allocate(len(names))
    assert pages is not None
    keys = [key(name) for name in names]
    for at in range(len(names)):
        pool.publish(keys, pages, at)
    return pages


def test_a_fresh_pool_hands_out_every_page_but_the_dummy() -> None:
    pool = BlockPool(4)
    pages = pool.allocate(4)
    assert pages is not None
    assert sorted(pages) == [1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert (pool.used, pool.available) == (4, 0)


def test_low_pages_are_taken_first_so_that_tables_stay_contiguous() -> None:
    pool = BlockPool(6)
    first = pool.allocate(3)
    assert first == [1, 2, 3]
    pool.release(first)
    assert pool.allocate(4) == [1, 2, 3, 4]


def test_a_freed_cached_block_is_found_until_it_is_evicted() -> None:
    pool = BlockPool(2)
    pages = chain(pool, "ab")
    pool.release(pages)
    assert pool.cached == 2
    assert pool.lookup([key("a"), key("b")]) == pages
    assert pool.allocate(1) is not None
    assert pool.lookup([key("a"), key("b")]) == pages[:1], "the leaf goes first"


def test_the_least_recently_used_chain_goes_first() -> None:
    pool = BlockPool(4)
    old, new = chain(pool, "ab"), chain(pool, "xy")
    pool.release(new)
    pool.release(old)
    pool.acquire(new)
    pool.release(new)
    pool.allocate(2)
    assert pool.lookup([key("a")]) == []
    assert pool.lookup([key("x"), key("y")]) == new
    assert pool.evictions == {Eviction.ROOM: 2, Eviction.PARENT: 0, Eviction.RESET: 0}


def test_a_lookup_stops_at_the_first_miss() -> None:
    pool = BlockPool(3)
    pages = chain(pool, "abc")
    assert pool.lookup([key("a"), key("?"), key("c")]) == pages[:1]


def test_a_block_published_twice_keeps_its_first_page() -> None:
    pool = BlockPool(4)
    first, second = chain(pool, "ab"), chain(pool, "ab")
    assert pool.lookup([key("a"), key("b")]) == first
    pool.release(second)
    assert pool.cached == 0, "an unlisted copy is simply free"


def test_a_child_never_outlives_its_parent_in_the_index() -> None:
    pool = BlockPool(4)
    pool.release(chain(pool, "a"))  # page 1 carries a; freed, evictable
    mine = pool.allocate(2)  # a request that computed a and b itself
    assert mine is not None
    pool.publish([key("a"), key("b")], mine, 0)
    pool.publish([key("a"), key("b")], mine, 1)  # b hangs below page 1
    assert pool.allocate(2) is not None  # evicts page 1
    assert not pool.is_cached(key("a"))
    assert not pool.is_cached(key("b")), "unreachable without its parent"
    assert pool.evictions == {Eviction.ROOM: 1, Eviction.PARENT: 1, Eviction.RESET: 0}
    assert pool.indexed == 0


def test_a_parent_that_was_evicted_is_published_again_by_who_still_holds_it() -> None:
    pool = BlockPool(4)
    pool.release(chain(pool, "a"))
    mine = pool.allocate(2)
    assert mine is not None
    pool.publish([key("a"), key("b")], mine, 0)
    assert pool.allocate(2) is not None
    pool.publish([key("a"), key("b")], mine, 1)
    assert pool.lookup([key("a"), key("b")]) == mine


def test_the_cache_hits_of_the_evictor_itself_are_safe_once_acquired() -> None:
    pool = BlockPool(3)
    hits = chain(pool, "ab")
    pool.release(hits)
    pool.acquire(hits)
    assert pool.allocate(2) is None
    assert pool.allocate(1) == [3]


@pytest.mark.parametrize("launched", [1, 2], ids=["one-step-in-flight", "two-steps-in-flight"])
def test_a_page_freed_in_flight_waits_for_the_last_step_that_may_touch_it(launched: int) -> None:
    pool = BlockPool(2)
    pages = pool.allocate(2)
    assert pages is not None
    for number in range(1, launched + 1):
        pool.launched(number)
    pool.release(pages)
    assert (pool.available, pool.recoverable, pool.used) == (0, 2, 0)
    for number in range(1, launched):
        pool.collected(number)
        assert pool.available == 0
    pool.collected(launched)
    assert pool.available == 2


def test_a_fenced_cached_block_can_be_hit_and_freed_again() -> None:
    pool = BlockPool(1)
    pages = chain(pool, "a")
    pool.launched(1)
    pool.release(pages)
    pool.acquire(pool.lookup([key("a")]))
    pool.launched(2)
    pool.release(pages)
    pool.collected(1)
    assert pool.available == 0, "step 2 may still read it"
    pool.collected(2)
    assert (pool.available, pool.cached, pool.used) == (1, 1, 0)


def test_a_reset_forgets_all_prefixes_but_takes_nothing_from_holders() -> None:
    pool = BlockPool(4)
    freed, held = chain(pool, "ab"), chain(pool, "cd")
    pool.release(freed)
    pool.reset()
    assert pool.lookup([key("a")]) == pool.lookup([key("c")]) == []
    assert (pool.used, pool.available, pool.cached, pool.indexed) == (2, 2, 0, 0)
    assert pool.evictions == {Eviction.ROOM: 0, Eviction.PARENT: 0, Eviction.RESET: 4}
    pool.release(held)
    assert pool.available == 4
