"""Where sequences want the same thing: who gives way, who had better wait, and what would be gained. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Series
from itertools import takewhile

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.sequence import Sequence
from headrace_wire.protocol import PAGE_TOKENS


def may_give_way(seq: Sequence) -> bool:
    """Has it made a block of progress since it was last preempted? Nobody takes its place before, of whatever class."""
    return seq.computed >= seq.floor


def victim_for(seq: Sequence, running: Series[Sequence]) -> Sequence | None:
    """The last in the order behind `seq` that may be preempted for it; `running` is in order."""
    for other in reversed(running):
        if other.order <= seq.order:
            return None
        if may_give_way(other):
            return other
    return None


def victims_below(priority: int, running: Series[Sequence]) -> list[Sequence]:
    """Those of lower classes that may be preempted, the last in the order first; `running` is in order."""
    lower = takewhile(lambda other: other.priority < priority, reversed(running))
    return [other for other in lower if may_give_way(other)]


def obtainable(pool: BlockPool, victims: Series[Sequence], hits: Series[int]) -> int:
    """Pages besides the hits that would be free, after the steps in flight, without these sequences."""
    held: dict[int, int] = {}
    for seq in victims:
        for page in seq.pages:
            held[page] = held.get(page, 0) + 1
    kept = set(hits)
    freed = sum(1 for page, n in held.items() if n == pool.references(page) and page not in kept)
    return pool.recoverable - sum(1 for page in hits if not pool.references(page)) + freed


def is_being_computed(seq: Sequence, prompts: Iterable[Sequence], pool: BlockPool) -> bool:
    """Is one of the prompts before it in the order computing the next block that it needs? Then it soon hits instead.

    `prompts`: running sequences that still compute what they know; some may have been preempted meanwhile.
    """
    if seq.scores:
        return False
    keys = seq.keys_of((seq.known - 1) // PAGE_TOKENS)
    at = len(pool.lookup(keys))
    return at < len(keys) and any(
        other.published <= at < len(other.keys) and other.keys[at] == keys[at]
        for other in prompts
        if other.row and other.order < seq.order
    )
