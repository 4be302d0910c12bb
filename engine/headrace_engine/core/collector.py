"""How often Python looks for cycles in the core."""

from __future__ import annotations

import gc

YOUNG = 50_000  # new objects that are alive at one time


def settle() -> None:
    """Call once all that lasts is loaded: it is not walked again, and what a step makes is not walked at all.

    A step makes some objects for each row (its part of the plan, of the result and of what is sent), which end by
    their counts: they are no part of cycles. With Python's own threshold of 700 a step of 1,024 rows begins six
    collections, some of them of everything, and takes twice as long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
