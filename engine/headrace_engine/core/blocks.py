"""Pages of KV: who holds which, which cached prefixes they carry, and when a freed one may be written again.

Every page is in exactly one state: used (references > 0), evictable (no reference, but in the prefix index), free, or
fenced (no reference, but a step in flight may still touch it; it becomes evictable or free when that step is over).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from enum import Enum

from headrace_engine.core.free import FreePages

NO_PAGE = 0  # the dummy page: never handed out


class Eviction(str, Enum):
    """Why a block lost its place in the prefix index."""

    ROOM = "room"  # its page was needed
    PARENT = "parent"  # a block above it went, so nothing leads to it any more
    RESET = "reset"  # another epoch began


class BlockPool:
    """Pages 1 to `total`, with a prefix index by block key.

    A block is published under its key only when its KV is computed. Freed pages keep their content until they are
    needed; the least recently used go first and, as a request's pages are given back from its end, leaves before
    their parents. When a block is evicted, blocks below it are no longer reachable and go with it.
    """

    def __init__(self, total: int):
        self.total = total
        self.used = 0  # pages with references
        self.evictions = dict.fromkeys(Eviction, 0)  # blocks since start
        self._refs = [0] * (total + 1)
        self._keys: list[bytes | None] = [None] * (total + 1)
        self._children: dict[int, set[int]] = {}
        self._parent = [NO_PAGE] * (total + 1)
        self._index: dict[bytes, int] = {}
        self._free = FreePages(total)
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._fenced: deque[int] = deque()
        self._fence = [0] * (total + 1)  # number of the last step that may touch the page
        self._in_fenced = [False] * (total + 1)
        self._launched = 0
        self._collected = 0

    @property
    def available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + len(self._evictable)

    @property
    def recoverable(self) -> int:
        """Pages that can be handed out when the steps in flight are over."""
        return self.total - self.used

    @property
    def cached(self) -> int:
        """Unreferenced pages that hold a cached prefix, fenced ones included."""
        return len(self._evictable) + sum(1 for p in self._fenced if self._refs[p] == 0 and self._keys[p] is not None)

    @property
    def indexed(self) -> int:
        """Blocks in the prefix index, whether somebody holds their pages or not."""
        return len(self._index)

    def references(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._refs[page]

    def is_cached(self, key: bytes) -> bool:
        """Is a block of this key in the prefix index?"""
        return key in self._index

    def launched(self, number: int) -> None:
        """Step `number` is in flight and may touch every page held now."""
        self._launched = number

    def collected(self, number: int) -> None:
        """All steps up to `number` are over: pages freed since before they ended come back."""
        self._collected = number
        while self._fenced and self._fence[self._fenced[0]] <= number:
            page = self._fenced.popleft()
            self._in_fenced[page] = False
            if self._refs[page] == 0:
                self._settle(page)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, evicting cached blocks where needed; None if there are too few."""
        if count > self.available:
            return None
        while len(self._free) < count:
            self._evict(next(iter(self._evictable)))
        pages = self._free.take(count)
        for page in pages:
            self._refs[page] = 1
        self.used += count
        return pages

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """Pages of the longest run of keys, from the first on, that are cached."""
        pages: list[int] = []
        for key in keys:
            page = self._index.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def idle(self, pages: Iterable[int]) -> int:
        """How many of these pages count as available now."""
        return sum(1 for page in pages if page in self._evictable)

    def acquire(self, pages: Iterable[int]) -> None:
        """One more reference to each page."""
        for page in pages:
            if self._refs[page] == 0:
                self.used += 1
                self._evictable.pop(page, None)
            self._refs[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One reference less to each page of a block table; the table's end is evicted before its start."""
        for page in reversed(pages):
            self._refs[page] -= 1
            if self._refs[page]:
                continue
            self.used -= 1
            if self._launched <= self._collected:
                self._settle(page)
                continue
            self._fence[page] = self._launched
            if not self._in_fenced[page]:
                self._in_fenced[page] = True
                self._fenced.append(page)

    def publish(self, keys: Sequence[bytes], pages: Sequence[int], at: int) -> None:
        """Make block `at` of a block table findable; its parents too, where they were evicted meanwhile.

        Where another page already carries the key, that one stays and this page is an unlisted copy.
        """
        first = at
        while first > 0 and keys[first - 1] not in self._index:
            first -= 1
        for i in range(first, at + 1):
            key, page = keys[i], pages[i]
            if key in self._index or self._keys[page] is not None:
                continue
            self._index[key] = page
            self._keys[page] = key
            if i > 0:
                parent = self._index[keys[i - 1]]
                self._parent[page] = parent
                self._children.setdefault(parent, set()).add(page)

    def reset(self) -> None:
        """Forget every cached block; pages in use stay with their holders, unlisted."""
        self.evictions[Eviction.RESET] += len(self._index)
        self._index.clear()
        self._children.clear()
        self._keys = [None] * (self.total + 1)
        self._parent = [NO_PAGE] * (self.total + 1)
        for page in self._evictable:
            self._free.add(page)
        self._evictable.clear()

    def _settle(self, page: int) -> None:
        if self._keys[page] is None:
            self._free.add(page)
        else:
            self._evictable[page] = None

    def _evict(self, page: int) -> None:
        """Take a block and all below it out of the index; those that nobody holds become free."""
        parent = self._parent[page]
        if parent in self._children:
            self._children[parent].discard(page)
            if not self._children[parent]:
                del self._children[parent]
        below = [page]
        reason = Eviction.ROOM
        while below:
            page = below.pop()
            below.extend(self._children.pop(page, ()))
            key = self._keys[page]
            if key is not None:
                del self._index[key]
                self.evictions[reason] += 1
            reason = Eviction.PARENT
            self._keys[page] = None
            self._parent[page] = NO_PAGE
            if page in self._evictable:
                del self._evictable[page]
                self._free.add(page)
