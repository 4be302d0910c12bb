"""The queue of one Model: it alone orders, ages and sheds. A pure state machine on one clock.

Order: the class of higher priority first, and inside a class first come, first served. Two rules bend it. A class whose
head has aged gets one dispatch in `aged_share`, so that it waits a bounded time under constant higher load. An item
that cannot be dispatched now lets others pass, at most `overtakes` times; then nothing passes it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Generic, TypeVar

from headrace.admission.deadline import latest, latest_cold
from headrace.admission.types import Blocked, ClassRule, Expired, Item, QueueLimits, Refusal, T
from headrace_wire.reasons import Reason

V = TypeVar("V")
_HEAP_SLACK = 64  # dead heap entries that are tolerated beyond the living


class Lane(Generic[T]):
    """The items of one class, first come, first served. Every operation is O(1)."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, Item[T]] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: Item[T], front: bool) -> None:
        """At the end, or at the front for one that had its turn already."""
        self._items[item.id] = item
        if front:
            self._items.move_to_end(item.id, last=False)
        self.tokens += item.prompt_tokens

    def remove(self, item: Item[T]) -> None:
        """Take out an item that is here."""
        del self._items[item.id]
        self.tokens -= item.prompt_tokens

    def first(self, most: int) -> list[Item[T]]:
        """The items whose turn is next."""
        return list(islice(self._items.values(), most))

    def head(self) -> Item[T] | None:
        """The item whose turn it is."""
        return next(iter(self._items.values()), None)


class FairQueue(Generic[T]):
    """Waiting requests of one Model, over all classes."""

    def __init__(self, limits: QueueLimits, classes: Mapping[str, ClassRule]):
        self._limits = limits
        self._rules: dict[str, ClassRule] = {}
        self._lanes: dict[str, Lane[T]] = {}  # by class, those with items and those of the SLO
        self._items: dict[str, Item[T]] = {}
        self._due: list[tuple[float, int, Item[T]]] = []  # heap by `latest`; entries whose time changed are dead
        self._serial = count()
        self._endpoints = False
        self._passed = 0  # dispatches in a row that went before an aged head
        self.bytes = 0
        self.configure(classes)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: Item[T]) -> bool:
        return self._items.get(item.id) is item

    def configure(self, classes: Mapping[str, ClassRule]) -> None:
        """Set the classes. Items of a class that is gone keep waiting under the last rule it had."""
        self._rules = {name: rule for name, rule in self._rules.items() if self._lanes.get(name)} | dict(classes)
        self._lanes = {name: self._lanes.get(name) or Lane() for name in self._rules}

    def set_endpoints(self, exist: bool) -> None:
        """Say whether any endpoint serves. Without one this is a waiting room, and waits are a cold start's."""
        if exist == self._endpoints:
            return
        self._endpoints = exist
        if not exist:
            for item in self._items.values():
                self._make_cold(item)

    def push(
        self, item: Item[T], prefill_rate: float = 0.0, front: bool = False, delay_s: float = 0.0
    ) -> Refusal | None:
        """Let an item wait. `prefill_rate`: tokens/s of its prompt, 0 = unknown; `delay_s`: usual seconds from dispatch
        to the first token beside that (`deadline.StartDelays`). Raises KeyError: unknown class."""
        rule = self._rules[item.service_class]
        if item.id in self._items:
            raise ValueError(f"request {item.id} waits already")
        refusal = None if front else self._full(item)
        if refusal is not None:
            return refusal
        prefill_s = item.prompt_tokens / prefill_rate if prefill_rate > 0 else 0.0
        item.latest = latest(item.arrived, rule, item.deadline_s, prefill_s + delay_s)
        self._items[item.id] = item
        self._lanes[item.service_class].push(item, front)
        self.bytes += item.bytes
        if self._endpoints and not item.cold:
            self._schedule(item)
        else:
            self._make_cold(item)
        return None

    def remove(self, item: Item[T]) -> bool:
        """Take an item out: it was cancelled. False if it is not here (any more)."""
        if item not in self:
            return False
        del self._items[item.id]
        self._lanes[item.service_class].remove(item)
        self.bytes -= item.bytes
        if len(self._due) > 2 * len(self._items) + _HEAP_SLACK:
            self._due = [entry for entry in self._due if self._alive(entry)]
            heapq.heapify(self._due)
        return True

    def take(self, admit: Callable[[Item[T]], V | Blocked], now: float) -> tuple[Item[T], V] | None:
        """The next item that `admit` finds a place for, with that place; None when nothing can go now.

        Items whose time is up are passed over: `expire` returns them.
        """
        aged = self._aged_lane(now)
        skipped: list[Item[T]] = []
        for lane in self._order(aged):
            for item in lane.first(self._limits.lookahead):
                if item.latest < now:
                    continue
                place = admit(item)
                if not isinstance(place, Blocked):
                    self._dispatched(item, lane, aged, skipped)
                    return item, place
                if place is Blocked.ALL or item.overtaken >= self._limits.overtakes:
                    return None
                skipped.append(item)
        return None

    def expire(self, now: float, retry_after_s: float | None = None) -> list[Expired[T]]:
        """Take out the items that can no longer begin in time. Why is decided now: is there an endpoint, or none."""
        expired: list[Expired[T]] = []
        while self._due and (self._due[0][0] < now or not self._alive(self._due[0])):
            entry = heapq.heappop(self._due)
            if self._alive(entry):
                item = entry[2]
                self.remove(item)
                expired.append(Expired(item, self._too_late(item, now, retry_after_s)))
        return expired

    def next_expiry(self) -> float | None:
        """When the next item's time is up."""
        while self._due and not self._alive(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def classes(self) -> list[str]:
        """Names of the classes, higher priority first."""
        return sorted(self._rules, key=lambda name: (-self._rules[name].priority, name))

    def queued(self, service_class: str) -> int:
        """Waiting requests of a class."""
        lane = self._lanes.get(service_class)
        return 0 if lane is None else len(lane)

    def queued_tokens(self, service_class: str) -> int:
        """Their prompt tokens."""
        lane = self._lanes.get(service_class)
        return 0 if lane is None else lane.tokens

    def oldest_age(self, service_class: str, now: float) -> float | None:
        """Seconds since the arrival of the class's oldest; None where none waits."""
        lane = self._lanes.get(service_class)
        head = None if lane is None else lane.head()
        return None if head is None else max(0.0, now - head.arrived)

    def _order(self, aged: Lane[T] | None) -> Iterator[Lane[T]]:
        if aged is not None and self._passed + 1 >= self._limits.aged_share:
            yield aged
        else:
            aged = None
        for name in self.classes():
            if self._lanes[name] is not aged:
                yield self._lanes[name]

    def _aged_lane(self, now: float) -> Lane[T] | None:
        """Of the classes below the highest that waits, the one whose head has outlived its patience most."""
        best, most = None, 1.0
        for name in [n for n in self.classes() if self._lanes[n]][1:]:
            head = self._lanes[name].head()
            after = max(self._rules[name].aged_after_s, 1e-3)
            if head is not None and (now - head.arrived) / after >= most:
                best, most = self._lanes[name], (now - head.arrived) / after
        return best

    def _dispatched(self, item: Item[T], lane: Lane[T], aged: Lane[T] | None, skipped: list[Item[T]]) -> None:
        for other in skipped:
            other.overtaken += 1
        self._passed = self._passed + 1 if aged is not None and lane is not aged else 0
        self.remove(item)

    def _full(self, item: Item[T]) -> Refusal | None:
        limits = self._limits
        if len(self._items) < limits.requests and self.bytes + item.bytes <= limits.bytes:
            return None
        state = f"{len(self._items)} requests of {self.bytes} bytes wait (limits: {limits.requests}, {limits.bytes})"
        if self._endpoints:
            return Refusal(Reason.QUEUE_FULL, f"The model's queue is full: {state}.")
        return Refusal(
            Reason.NO_CAPACITY, f"No replica of the model serves yet, and its waiting room is full: {state}."
        )

    def _too_late(self, item: Item[T], now: float, retry_after_s: float | None) -> Refusal:
        waited = f"{now - item.arrived:.1f} s"
        if not self._endpoints:
            message = f"No replica of the model serves; the request waited {waited} for one."
            return Refusal(Reason.NO_CAPACITY, message, retry_after_s)
        message = f"The request waited {waited} and can no longer begin in time for its deadline."
        return Refusal(Reason.DEADLINE_EXCEEDED, message, retry_after_s)

    def _make_cold(self, item: Item[T]) -> None:
        """Endpoints are gone: the wait becomes a cold start's, and stays so when they are back."""
        item.cold = True
        item.latest = latest_cold(item.arrived, self._limits.cold_wait_s, item.deadline_s)
        self._schedule(item)

    def _schedule(self, item: Item[T]) -> None:
        heapq.heappush(self._due, (item.latest, next(self._serial), item))

    def _alive(self, entry: tuple[float, int, Item[T]]) -> bool:
        return entry[2] in self and entry[0] == entry[2].latest
