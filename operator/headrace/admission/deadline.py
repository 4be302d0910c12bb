"""Until when a request may wait. Pure; one clock, seconds."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from headrace.admission.types import ClassRule

MIN_SHARE = 0.5  # of its slack that a request may always wait, however long its own prefill takes
SEEN_S = 60.0  # for so long a start counts
MOST_STARTS = 1024
LEAST_STARTS = 10  # fewer say nothing
LATE_PERCENT = 95  # of the starts that the delay covers


class StartDelays:
    """What engines take from dispatch to the first token beyond the prompt's own prefill, as seen of late.

    It is the rest of the step in progress, other prompts in the same step, and what the way there and back costs.
    """

    def __init__(self) -> None:
        self._by_time: deque[tuple[float, float]] = deque()  # (when, seconds)
        self._sorted: list[float] = []

    def record(self, now: float, after_s: float, prefill_s: float) -> None:
        """A first token came `after_s` after its dispatch; `prefill_s` of it the own prompt was expected to take."""
        delay = max(0.0, after_s - prefill_s)
        self._by_time.append((now, delay))
        insort(self._sorted, delay)
        if len(self._by_time) > MOST_STARTS:
            self._drop()

    def usual_s(self, now: float) -> float:
        """The delay that 95 % of the last minute's starts kept within; 0 while too few were seen."""
        while self._by_time and self._by_time[0][0] < now - SEEN_S:
            self._drop()
        count = len(self._sorted)
        return self._sorted[(count * LATE_PERCENT - 1) // 100] if count >= LEAST_STARTS else 0.0

    def _drop(self) -> None:
        _, delay = self._by_time.popleft()
        del self._sorted[bisect_left(self._sorted, delay)]


def latest_start(arrived: float, slack_s: float, start_s: float) -> float:
    """The last moment to begin so that the first token comes within the slack, `start_s` after that.

    A request whose own start eats the slack is late whatever is done: it keeps half of the slack to wait in.
    """
    return arrived + max(slack_s - start_s, slack_s * MIN_SHARE)


def latest(arrived: float, rule: ClassRule, client_s: float | None, start_s: float) -> float:
    """The last moment to begin while endpoints exist; the client's deadline can only bring it forward.

    `start_s`: own prefill, and what engines usually take beside it.
    """
    by_class = latest_start(arrived, rule.ttft_s, start_s)
    return by_class if client_s is None else min(by_class, latest_start(arrived, max(0.0, client_s), start_s))


def latest_cold(arrived: float, cold_wait_s: float, client_s: float | None) -> float:
    """The last moment to begin for a request that has met no endpoint: a cold start's time, not the class's."""
    return arrived + (cold_wait_s if client_s is None else min(cold_wait_s, max(0.0, client_s)))
