"""A runner without a model, for tests and benchmarks of the scheduler. No torch.

Its "KV" is the token itself, kept per page and slot, so that every step can check that a row's block table holds the
row's own context. Its next token is a hash of the whole context: any run of a request must give the same output.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from dataclasses import dataclass, field

from headrace_engine.core.plan import KvSpec, NewRow, RowStep, StepPlan, StepResult
from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.reasons import Reason

VOCAB = 1000


def next_token(context: array[int]) -> int:
    """The token that follows a context."""
    return int.from_bytes(hashlib.blake2b(context.tobytes(), digest_size=4).digest(), "little") % VOCAB


def generate(prompt: list[int], max_tokens: int, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """The output that a request must get."""
    context = array("i", prompt)
    for _ in range(max_tokens):
        context.append(next_token(context))
        if context[-1] in stop_ids:
            break
    return list(context[len(prompt) :])


class PageError(AssertionError):
    """A page held, or would hold, what it must not."""


@dataclass
class _Row:
    tokens: array[int]
    pages: list[int]
    failed: bool = False  # nothing of it is computed any more


@dataclass
class FakeRunner:
    """Computes each step when it is collected; up to `lag` + 1 are in flight."""

    lag: int
    kv: KvSpec
    fail_rows: dict[int, Reason] = field(default_factory=dict)  # rows that fail in the next step collected
    tokens: int = 0  # computed since the start
    _rows: dict[int, _Row] = field(default_factory=dict)
    _queue: deque[tuple[StepPlan, list[tuple[_Row, int]]]] = field(default_factory=deque)
    _memory: dict[int, array[int]] = field(default_factory=dict)

    def launch(self, plan: StepPlan) -> None:
        """Take the plan's changes; check that pages to be written are not in use by steps in flight."""
        if len(self._queue) > self.lag:
            raise PageError(f"step {plan.number} launched with {len(self._queue)} in flight at lag {self.lag}")
        for row in plan.drop:
            del self._rows[row]
        starts = {step.row: step.start for step in plan.steps}
        for new in plan.new:
            self._check_fence(new.row, new.pages[starts[new.row] // PAGE_TOKENS :])
            self._rows[new.row] = self._enter(new)
        for step in plan.steps:
            self._check_fence(step.row, step.pages)
            self._rows[step.row].pages += step.pages
        rows = [(self._rows[step.row], len(self._rows[step.row].pages)) for step in plan.steps]
        self._queue.append((plan, rows))

    def collect(self) -> StepResult:
        """Run the oldest step."""
        plan, rows = self._queue.popleft()
        failed, self.fail_rows = self.fail_rows, {}
        sampled: dict[int, list[int]] = {}
        for step, (row, page_count) in zip(plan.steps, rows, strict=True):
            row.failed = row.failed or step.row in failed
            if row.failed:
                sampled[step.row] = [0]
                continue
            self._write(step, row, page_count)
            if step.sample:
                row.tokens.append(next_token(row.tokens[: step.start + step.count]))
                sampled[step.row] = [row.tokens[-1]]
        return StepResult(number=plan.number, tokens=sampled, failed=failed, ms=1.0)

    def _enter(self, new: NewRow) -> _Row:
        if len(set(new.pages)) != len(new.pages) or 0 in new.pages:
            raise PageError(f"block table {new.pages}")
        return _Row(array("i", new.tokens), list(new.pages))

    def _check_fence(self, row: int, pages: list[int]) -> None:
        """Pages that a row begins to own must not belong to another row of a step in flight."""
        own = self._rows.get(row)
        for _, rows in self._queue:
            for other, _ in rows:
                touched = set(pages) & set(other.pages)
                if other is not own and touched:
                    raise PageError(f"pages {touched} handed out while a step that may touch them is in flight")

    def _write(self, step: RowStep, row: _Row, page_count: int) -> None:
        end = step.start + step.count
        if end > len(row.tokens) or end > page_count * PAGE_TOKENS:
            raise PageError(f"row {step.row}: {end} tokens of {len(row.tokens)} known on {page_count} pages")
        self.tokens += step.count
        for at in range(step.start // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
            page, base = self._page(row.pages[at]), at * PAGE_TOKENS
            first, last = max(step.start, base), min(end, base + PAGE_TOKENS)
            page[first - base : last - base] = row.tokens[first:last]
        for at in range(-(-end // PAGE_TOKENS)):
            want = row.tokens[at * PAGE_TOKENS : min(end, (at + 1) * PAGE_TOKENS)]
            if self._page(row.pages[at])[: len(want)] != want:
                raise PageError(f"row {step.row}: page {row.pages[at]} does not hold tokens {at * PAGE_TOKENS} on")

    def _page(self, page: int) -> array[int]:
        """Its slots; -1 where nothing was written."""
        if page not in self._memory:
            self._memory[page] = array("i", [-1]) * PAGE_TOKENS
        return self._memory[page]


def fake_kv(pages: int) -> KvSpec:
    """A pool of `pages` pages."""
    return KvSpec(pages=pages, groups=[], layout="fake")
