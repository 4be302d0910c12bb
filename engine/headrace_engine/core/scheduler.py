"""Which tokens are computed in the next step, for whom, and what a step's result means. Pure: time is an argument.

One token budget, no phases: each sequence wants its known tokens less those computed. Sequences that decode come first,
so that each gets its token in every step; what is left of the budget goes to prompts, by priority, then those already
begun, then arrival. Order is integer priority, then arrival; it never ages.

Preemption is by recomputing. A sequence takes pages only from later ones. One that was preempted is re-admitted with
the pages of a whole block of new progress, and nobody may take them before it has made it, not even a higher class: so
whoever waits for such a sequence waits a bounded number of steps, and the first in the order always goes on.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import Pace, Streams
from headrace_engine.core.contention import is_being_computed, obtainable, victim_for, victims_below
from headrace_engine.core.followers import Followers
from headrace_engine.core.launch import Launched, launch
from headrace_engine.core.plan import StepPlan, StepResult
from headrace_engine.core.reuse import Reuse
from headrace_engine.core.sequence import NO_TARGET_S, Sequence, pages_for
from headrace_wire.protocol import PAGE_TOKENS, Delta, Finish, Submit, TokenLogprob
from headrace_wire.reasons import Reason

MAX_HELD = 16  # sequences that one step passes over because their prefix is being computed
MAX_SCORED = 64  # prompt tokens of one step that are reported on: each costs a row of logits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one engine."""

    max_sequences: int  # that hold pages at one time
    max_batch_tokens: int  # computed in one step; below max_sequences the last decode rows wait
    max_tokens: int  # context length: prompt + output
    vocab: int  # token ids are below


class Scheduler:
    """Queues, pages and the steps in flight of one engine."""

    def __init__(self, limits: Limits, pool: BlockPool, cache_root: str, pace: Pace | None = None):
        """`pace`: keeps the targets of running streams; None: prompts get all that `max_batch_tokens` leaves."""
        self.pace = pace
        self.limits = limits
        self.context = min(limits.max_tokens, pool.total * PAGE_TOKENS)  # tokens: one full sequence fits the pool
        self.pool = pool
        self.cache_root = cache_root
        self.running: list[Sequence] = []  # by order; each holds a row and pages
        self.waiting: list[Sequence] = []  # by order
        self.preemptions = 0  # since start
        self.reuse = Reuse()
        self.draining = False
        self._live: dict[str, Sequence] = {}
        self._followers = Followers()
        self._deadlines: list[tuple[float, int, str]] = []  # time, arrival, id: ended ones are not kept alive by it
        self._arrivals = 0
        self._rows = 0
        self._number = 0
        self._in_flight: deque[tuple[int, list[Launched]]] = deque()
        self._drop: list[int] = []
        self._draft: dict[Sequence, int] = {}  # tokens given in the step being planned
        self._prompts: list[Sequence] = []  # that want more than one token in it, as they come up
        self._budget = 0
        self._scored_budget = 0

    # -- requests

    def submit(self, submit: Submit, now: float) -> list[Delta]:
        """Queue a request. One that can never run ends at once; a second one under a live id is not taken."""
        if submit.id in self._live:
            raise ValueError(f"request id {submit.id} is in use")
        refusal = self._refusal(submit)
        if refusal is not None:
            return [Delta(id=submit.id, error=refusal)]
        self._arrivals += 1
        seq = Sequence(submit, self._arrivals, now, self.context)
        seq.start_chain(self.cache_root)
        self._live[seq.id] = seq
        leader = self._live.get(submit.after)
        if leader is not None and leader.known == leader.prompt:
            self._followers.add(seq, leader)
        else:
            insort(self.waiting, seq, key=_order)
        if seq.deadline is not None:
            heapq.heappush(self._deadlines, (seq.deadline, self._arrivals, seq.id))
        return []

    def _refusal(self, submit: Submit) -> Reason | None:
        size = len(submit.tokens) // 4
        if self.draining:
            return Reason.DRAINING
        if size == 0 or len(submit.tokens) % 4 or submit.max_tokens < 1:
            return Reason.INVALID_REQUEST
        if size + 1 > self.context:
            return Reason.CONTEXT_EXCEEDED
        ids = memoryview(submit.tokens).cast("i")
        return None if min(ids) >= 0 and max(ids) < self.limits.vocab else Reason.INVALID_REQUEST

    def abort(self, ids: list[str], reason: Reason) -> list[Delta]:
        """End these requests, in whatever state; unknown ids are ignored (they may have ended meanwhile)."""
        found = [seq for seq in (self._live.get(i) for i in ids) if seq is not None]
        return [self._end(seq, error=reason) for seq in found]

    def abort_all(self, reason: Reason) -> list[Delta]:
        """End everything."""
        return self.abort(list(self._live), reason)

    def expire(self, now: float) -> list[Delta]:
        """End the requests whose time ran out."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, name = heapq.heappop(self._deadlines)
            seq = self._live.get(name)
            if seq is not None and seq.order[1] == number:  # not another one of the same id
                ended.append(self._end(seq, error=Reason.DEADLINE_EXCEEDED))
        return ended

    def reset_cache(self, cache_root: str) -> None:
        """Begin a new epoch: no block of before is found again, nor published by a sequence that runs on."""
        self.cache_root = cache_root
        self.pool.reset()
        for seq in self.running:
            seq.root, seq.keys = None, []
        for seq in self.queued():
            seq.start_chain(cache_root)

    def forget(self, rows: list[int]) -> None:
        """Rows that the runner knows and that are not of here: the next plan drops them."""
        self._drop += rows

    def queued(self) -> list[Sequence]:
        """All that hold no row: those that wait, and those that wait for another's prefill."""
        return [*self.waiting, *self._followers.all()]

    @property
    def busy(self) -> bool:
        """Is anything queued, running or in flight?"""
        return bool(self._live or self._in_flight)

    @property
    def in_flight(self) -> int:
        """Steps launched and not collected."""
        return len(self._in_flight)

    # -- planning a step

    def plan(self) -> StepPlan | None:
        """The next step; None when nothing can be computed now (then collect what is in flight)."""
        self._budget = self.limits.max_batch_tokens
        self._scored_budget = MAX_SCORED
        self._draft = {}
        self._prompts = []
        streams, blocked = self._plan_decodes()
        if self.pace is not None and streams.rows:
            self._budget = self.pace.share(streams, self._budget)
        self._plan_prompts(blocked)
        return self._commit() if self._draft else None

    def _plan_decodes(self) -> tuple[Streams, bool]:
        """Give each decoding sequence its token. What they are, and True where one got no page: later ones then take
        none either. The prompts among the running are found on the way.
        """
        draft, blocked = self._draft, False
        context, target = 0, NO_TARGET_S
        for seq in self.running.copy():
            coming = seq.known + seq.pending
            if not seq.row or coming >= seq.limit:  # preempted just now, or all in flight
                continue
            if coming - seq.computed > 1:
                self._prompts.append(seq)
            elif seq.computed >= seq.room and (blocked or not self._grow(seq)):
                blocked = True
            elif len(draft) < self._budget:
                draft[seq] = 1
                context += coming
                target = min(target, seq.target_s)
        self._budget -= len(draft)
        depth = self._prompts[0].computed if self._prompts else 0
        return Streams(len(draft), context, None if target == NO_TARGET_S else target, depth), blocked

    def _plan_prompts(self, blocked: bool) -> None:
        """Spend the rest of the budget on prompts: begun ones before waiting ones of the same priority."""
        begun = deque(self._prompts)
        held = 0  # waiting sequences passed over
        while self._budget > 0:
            waiting = self.waiting[held] if not blocked and held < min(len(self.waiting), MAX_HELD) else None
            if begun and (waiting is None or begun[0].priority >= waiting.priority):
                seq = begun.popleft()
                if seq.row:  # not preempted by one admitted just now
                    self._give(seq, seq.want)
            elif waiting is None:
                return
            elif is_being_computed(waiting, self._prompts, self.pool):
                held += 1
            elif self._admit(waiting):
                self._prompts.append(waiting)
                self._give(waiting, waiting.want)
            else:
                blocked = True

    def _give(self, seq: Sequence, want: int) -> None:
        count = min(want, self._budget)
        if seq.scores and want > 1:
            count = min(count, self._scored_budget)
            self._scored_budget -= count
        if count > 0:
            self._draft[seq] = count
            self._budget -= count

    def _grow(self, seq: Sequence) -> bool:
        """One more page for a sequence that decodes, taken from later ones if need be."""
        while True:
            pages = self.pool.allocate(1)
            if pages is not None:
                seq.grow(pages)
                return True
            if self.pool.recoverable:
                return False  # freed already, but a step in flight may still touch it
            victim = victim_for(seq, self.running)
            if victim is None:
                return False
            self._preempt(victim)

    def _preempt(self, seq: Sequence) -> None:
        """Take row and pages of a sequence back; it waits and will be recomputed."""
        self._take_back(seq)
        seq.rewind()
        if seq.root is None:
            seq.start_chain(self.cache_root)
        insort(self.waiting, seq, key=_order)
        self.preemptions += 1

    def _take_back(self, seq: Sequence) -> None:
        _take_out(self.running, seq)
        self._budget += self._draft.pop(seq, 0)
        if seq.told:
            self._drop.append(seq.row)
        self.pool.release(seq.pages)

    # -- admission

    def _admit(self, seq: Sequence) -> bool:
        """Give the first waiting sequence a row and all pages of its prompt, or leave everything as it is."""
        hits = [] if seq.scores else self.pool.lookup(seq.keys_of((seq.known - 1) // PAGE_TOKENS))
        if not self._make_room(seq, hits):
            return False
        self.pool.acquire(hits)
        fresh = self.pool.allocate(pages_for(seq.reserve) - len(hits))
        if fresh is None:  # what was freed for it may still be touched by a step in flight
            self.pool.release(hits)
            return False
        _take_out(self.waiting, seq)
        insort(self.running, seq, key=_order)
        self._rows += 1
        seq.enter(self._rows, hits + fresh, len(hits))
        if not seq.started:
            seq.started = True
            seq.cached = seq.computed
            self.reuse.count(seq.prompt, seq.cached, None if self.pace is None else self.pace.times)
        return True

    def _make_room(self, seq: Sequence, hits: list[int]) -> bool:
        """Is there a slot, and are there pages besides the hits? Lower classes are preempted only if that helps."""
        need = pages_for(seq.reserve) - len(hits)
        spare = self.pool.available - self.pool.idle(hits)
        # A page for every fourth running sequence, so that a fresh prompt does not at once push one out.
        margin = len(self.running) // 4
        if len(self.running) < self.limits.max_sequences and spare >= need + margin:
            return True
        lower = victims_below(seq.priority, self.running)
        if not lower or obtainable(self.pool, lower, hits) < need:
            return False
        while len(self.running) >= self.limits.max_sequences or obtainable(self.pool, [], hits) < need:
            self._preempt(lower.pop(0))
        return True

    # -- launch and result

    def _commit(self) -> StepPlan:
        """Fix the draft: its tokens count as computed, and it is remembered as in flight."""
        self._number += 1
        plan, launched = launch(self._number, self._draft, self._drop)
        self._draft, self._drop = {}, []
        self._in_flight.append((self._number, launched))
        self.pool.launched(self._number)
        return plan

    def apply(self, result: StepResult) -> list[Delta]:
        """Take the result of the oldest step in flight."""
        number, rows = self._in_flight.popleft()
        if number != result.number:
            raise RuntimeError(f"step {result.number} came back while {number} is the oldest in flight")
        self.pool.collected(number)
        tokens, logprobs, scored, failed = result.tokens, result.logprobs, result.prompt_logprobs, result.failed
        deltas: list[Delta] = []
        for seq, row, end, sample in rows:
            if seq.row != row:  # ended or preempted meanwhile
                continue
            if row in failed:
                deltas.append(self._end(seq, error=failed[row]))
                continue
            seq.done = end
            if row in scored:
                seq.scored(end, scored[row])
            if end >= (seq.published + 1) * PAGE_TOKENS:
                self._publish(seq)
            if sample:
                deltas.append(self._accept(seq, tokens[row], logprobs.get(row)))
        return deltas

    def fail_step(self, reason: Reason) -> list[Delta]:
        """The oldest step in flight is lost: its requests end with `reason`."""
        number, rows = self._in_flight[0]
        failed = {row: reason for _, row, _, _ in rows}
        return self.apply(StepResult(number=number, tokens={}, failed=failed))

    def _publish(self, seq: Sequence) -> None:
        """Offer the blocks that are full and computed to the prefix index."""
        full = min(seq.done, seq.known) // PAGE_TOKENS
        if seq.root is None or full <= seq.published:
            return
        keys = seq.keys_of(full)
        for at in range(seq.published, full):
            self.pool.publish(keys, seq.pages, at)
        seq.published = full

    def _accept(self, seq: Sequence, tokens: list[int], logprobs: list[TokenLogprob] | None) -> Delta:
        first = seq.known == seq.prompt
        seq.accept(tokens)
        if first:
            self._queue_all(self._followers.release(seq))
        finish = None
        if tokens[-1] in seq.stop_ids:
            finish = Finish.STOP
        elif seq.known >= seq.limit:
            finish = Finish.LENGTH
        if finish is not None:
            self._leave(seq)
        elif not first:
            return Delta(id=seq.id, tokens=tokens, logprobs=logprobs or [])
        return Delta(
            id=seq.id,
            tokens=tokens,
            logprobs=logprobs or [],
            prompt_logprobs=seq.prompt_logprobs if first else [],
            cached=seq.cached,
            finish=finish,
        )

    def _end(self, seq: Sequence, error: Reason) -> Delta:
        """End a request that did not finish."""
        self._leave(seq)
        return Delta(id=seq.id, cached=seq.cached, error=error)

    def _leave(self, seq: Sequence) -> None:
        """The one place where a request ends: everything it held goes back."""
        if seq.row:
            self._take_back(seq)
        elif seq.leader:
            self._followers.remove(seq)
        else:
            _take_out(self.waiting, seq)
        seq.leave()
        del self._live[seq.id]
        self._queue_all(self._followers.release(seq))

    def _queue_all(self, released: list[Sequence]) -> None:
        for seq in released:
            insort(self.waiting, seq, key=_order)


def _order(seq: Sequence) -> tuple[int, int]:
    return seq.order


def _take_out(queue: list[Sequence], seq: Sequence) -> None:
    """Remove a sequence from a list by order, without looking at all of them."""
    del queue[bisect_left(queue, seq.order, key=_order)]
