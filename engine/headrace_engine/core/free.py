"""Pages that carry nothing, and which of them are handed out: neighbours where there are any."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

LOOKED_AT = 256  # returned pages among which neighbours are looked for, so that a large pool costs no more


class FreePages:
    """Pages never used are one run up to the pool's end; those given back are kept in rising order.

    Keys and values on neighbouring pages are read in place, on scattered ones they are copied first. So a sequence's
    pages come from a run, even of pages never used, and single pages fill what is left between others.
    """

    def __init__(self, total: int):
        """Pages 1 to `total`."""
        self._total = total
        self._fresh = 1  # the first page never used
        self._back: list[int] = []

    def __len__(self) -> int:
        return len(self._back) + self._total + 1 - self._fresh

    def __iter__(self) -> Iterator[int]:
        yield from self._back
        yield from range(self._fresh, self._total + 1)

    def add(self, page: int) -> None:
        """A page comes back."""
        insort(self._back, page)

    def take(self, count: int) -> list[int]:
        """`count` of at least as many pages."""
        at = self._run(count)
        if at is None:
            if count <= self._total + 1 - self._fresh:
                return self._take_fresh(count)
            at = 0
        pages = self._back[at : at + count]
        del self._back[at : at + count]
        return pages + self._take_fresh(count - len(pages))

    def _take_fresh(self, count: int) -> list[int]:
        self._fresh += count
        return list(range(self._fresh - count, self._fresh))

    def _run(self, count: int) -> int | None:
        """Where the lowest `count` neighbours begin among the pages given back."""
        back = self._back
        first = 0  # of the run that page `at` belongs to
        for at in range(min(len(back), LOOKED_AT)):
            if at and back[at] != back[at - 1] + 1:
                first = at
            if at - first + 1 == count:
                return first
        return None
