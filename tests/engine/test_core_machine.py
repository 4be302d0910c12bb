"""Random submits, aborts, failures, expiries, resets and steps at lags 0 to 2; the fake runner checks its pages.

After each: no page has two owners and none is lost, references equal holders, holders sum to the pool, budgets are
kept, no more is cached than a prompt less one token, nobody is passed over inside its class, no victim twice without a
block of progress between, no prefix is shared between salts or adapters, and each request ends exactly once, in time,
with its own output.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.budget import FLOOR_TOKENS, Pace, work_of
from headrace_engine.core.contention import is_being_computed
from headrace_engine.core.plan import StepPlan
from headrace_engine.core.scheduler import MAX_HELD, Limits, Scheduler
from headrace_engine.core.sequence import Sequence, pages_for
from headrace_engine.core.state import Identity, Reporter, held_by
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv, generate
from headrace_wire.protocol import PAGE_TOKENS, Delta, Finish, ModelInfo, Sampling, Submit
from headrace_wire.reasons import Reason

# Prompts are cut from a few documents, so that they share prefixes.
DOCUMENTS = [[(d * 7 + i * 13) % VOCAB for i in range(400)] for d in range(3)]
CONTEXT = 320


class Watched(Scheduler):
    """Knows what every victim had computed when it was preempted, and for whom a page was published."""

    def __init__(self, limits: Limits, pool: BlockPool, cache_root: str, pace: Pace | None):
        super().__init__(limits, pool, cache_root, pace)
        self.marks: dict[str, int] = {}
        self.domains: dict[int, tuple[bytes, bytes | None]] = {}

    def _publish(self, seq: Sequence) -> None:
        before = seq.published
        super()._publish(seq)
        self.domains |= dict.fromkeys(seq.pages[before : seq.published], _domain(seq))

    def _admit(self, seq: Sequence) -> bool:
        admitted = super()._admit(seq)
        hits = seq.pages[: seq.computed // PAGE_TOKENS] if admitted else []
        assert all(self.domains[page] == _domain(seq) for page in hits), "a prefix of another salt or adapter"
        return admitted

    def _preempt(self, seq: Sequence) -> None:
        last = self.marks.get(seq.id)
        assert last is None or seq.computed >= min(last + PAGE_TOKENS, seq.limit - 1), "a victim without progress"
        self.marks[seq.id] = seq.computed
        super()._preempt(seq)


def _domain(seq: Sequence) -> tuple[bytes, bytes | None]:
    return seq.submit.salt, seq.submit.adapter


class Engine(RuleBasedStateMachine):
    """A scheduler, a fake runner, and what must be true of them."""

    @initialize(
        lag=st.sampled_from([0, 1, 2]),
        pages=st.integers(5, 16),
        sequences=st.integers(1, 5),
        budget=st.sampled_from([5, 33, 64, 200]),
        paced=st.booleans(),
    )
    def start(self, lag: int, pages: int, sequences: int, budget: int, paced: bool) -> None:
        self.limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=CONTEXT, vocab=VOCAB)
        self.pace = Pace() if paced else None
        self.scheduler = Watched(self.limits, BlockPool(pages), "00", self.pace)
        self.runner = FakeRunner(lag, fake_kv(pages))
        self.reporter = Reporter(Identity(ModelInfo(name="m"), self.runner.kv, "i"))
        self.plans: dict[int, StepPlan] = {}
        # First in the order, tokens it had computed, steps since then, the most that others had to compute meanwhile.
        self.stalled: tuple[str, int, int, int] = ("", 0, 0, 0)
        self.born: dict[str, float] = {}
        self.now = 0.0
        self.requests: dict[str, Submit] = {}
        self.outputs: dict[str, list[int]] = {}
        self.expected: dict[str, list[int]] = {}
        self.ended: dict[str, Delta] = {}
        self.epoch = 0
        self.failing: dict[str, Reason] = {}

    @rule(
        document=st.integers(0, 2),
        length=st.integers(1, CONTEXT + 10) | st.integers(1, 10).map(lambda n: 32 * n) | st.just(129),
        max_tokens=st.integers(1, 150),
        priority=st.integers(0, 2),
        salt=st.sampled_from([b"", b"a"]),
        adapter=st.sampled_from([None, None, b"a"]),
        holder=st.sampled_from(["g1", "g2"]),
        left_ms=st.sampled_from([None, None, None, 50.0]),
    )
    def submit(
        self,
        document: int,
        length: int,
        max_tokens: int,
        priority: int,
        salt: bytes,
        adapter: bytes | None,
        holder: str,
        left_ms: float | None,
    ) -> None:
        more = {"priority": priority, "salt": salt, "adapter": adapter, "holder": holder, "left_ms": left_ms}
        self.send(DOCUMENTS[document][:length], max_tokens, **more)

    @rule(
        document=st.integers(0, 2), length=st.integers(1, 200), count=st.integers(2, 4), max_tokens=st.integers(1, 60)
    )
    def submit_choices(self, document: int, length: int, count: int, max_tokens: int) -> None:
        first = f"r{len(self.requests)}"
        for index in range(count):
            self.send(DOCUMENTS[document][:length], max_tokens=max_tokens, after=first if index else "")

    def send(self, tokens: list[int], max_tokens: int, **more: Any) -> None:
        name = f"r{len(self.requests)}"
        data = array("i", tokens).tobytes()
        submit = Submit(id=name, tokens=data, sampling=Sampling(), max_tokens=max_tokens, **more)
        self.requests[name] = submit
        self.outputs[name] = []
        self.expected[name] = generate(tokens, max_tokens)
        self.born[name] = self.now
        refused = self.scheduler.submit(submit, self.now)
        self.take(refused)
        assert bool(refused) == (len(tokens) + 1 > min(CONTEXT, self.scheduler.pool.total * PAGE_TOKENS))

    @precondition(lambda self: len(self.ended) < len(self.requests))
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        live = [i for i in self.requests if i not in self.ended]
        chosen = live[pick % len(live)]
        self.take(self.scheduler.abort([chosen, "unknown"], Reason.CANCELLED))
        assert self.ended[chosen].error is Reason.CANCELLED

    @precondition(lambda self: self.scheduler.running)
    @rule(pick=st.integers(0, 1000))
    def fail_a_row(self, pick: int) -> None:
        running = self.scheduler.running
        seq = running[pick % len(running)]
        self.failing[seq.id] = Reason.INTERNAL
        self.runner.fail_rows = {seq.row: Reason.INTERNAL}  # where the next step collected has it
        self.step()
        self.runner.fail_rows = {}

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        self.now += ms / 1000
        self.take(self.scheduler.expire(self.now))
        for name in self.requests.keys() - self.ended.keys():
            left_ms = self.requests[name].left_ms
            assert left_ms is None or self.now < self.born[name] + left_ms / 1000, "its time ran out"

    @rule(count=st.integers(1, 20))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule()
    def reset_cache(self) -> None:
        self.epoch += 1
        self.scheduler.reset_cache(f"{self.epoch:02x}")

    def step(self) -> bool:
        """One turn of the loop; False when there was nothing to do."""
        waiting = list(self.scheduler.waiting)
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans[plan.number] = plan
            self.check_plan(plan)
            self.check_order(waiting)
            self.runner.launch(plan)
        if self.scheduler.in_flight > (self.runner.lag if plan is not None else 0):
            result = self.runner.collect()
            work = work_of(self.plans.pop(result.number))
            if self.pace is not None:
                self.pace.times.observe(work, 0.004 + 0.0005 * work.decodes + 0.0003 * work.prefill)
            self.take(self.scheduler.apply(result))
        elif plan is None:
            return False
        self.check_progress()
        return True

    def check_plan(self, plan: StepPlan) -> None:
        counts = [step.count for step in plan.steps]
        assert sum(counts) <= self.limits.max_batch_tokens
        assert len(counts) <= len(self.scheduler.running) <= self.limits.max_sequences
        ones = [count == 1 for count in counts]
        assert ones == sorted(ones, reverse=True), "rows with one token come first"
        assert len({step.row for step in plan.steps}) == len(counts), "a row was planned twice"

    def check_order(self, waiting: list[Sequence]) -> None:
        """Who was admitted passed over nobody but those whose prefix is being computed."""
        admitted = [seq for seq in waiting if seq.row]
        if not admitted:
            return
        last = max(seq.order for seq in admitted)
        passed = [seq for seq in waiting if not seq.row and seq.order < last]
        assert len(passed) <= MAX_HELD
        for seq in passed:
            assert is_being_computed(seq, self.scheduler._prompts, self.scheduler.pool)

    def check_progress(self) -> None:
        """The first in the order goes on.

        At worst it waits for victims of before to compute again what they knew and to make their block of progress; or,
        if it never ran, for the end of those that passed it while its prefix was being computed, where it does not fit
        beside them: nobody of its own class gives way to it.
        """
        live = [*self.scheduler.running, *self.scheduler.waiting]
        if not live:
            return
        first = min(live, key=lambda seq: seq.order)
        name, computed, steps, most = self.stalled
        share = max(1, min(self.limits.max_batch_tokens - self.limits.max_sequences, FLOOR_TOKENS))
        others = -(-sum(seq.want for seq in self.scheduler.running) // share)  # steps to compute what they know
        if not first.started:
            others += max((seq.limit - seq.known for seq in self.scheduler.running), default=0)
        if name != first.id or computed != first.computed:
            self.stalled = (first.id, first.computed, 0, others)
            return
        self.stalled = (name, computed, steps, most) = (name, computed, steps + 1, max(most, others))
        assert steps <= self.runner.lag + 2 + PAGE_TOKENS + most, "the first in the order starves"

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            assert delta.id not in self.ended, "something came after the end"
            self.outputs[delta.id] += delta.tokens
            submit = self.requests[delta.id]
            assert delta.cached <= max(0, len(submit.tokens) // 4 - 1)
            if delta.error is Reason.DEADLINE_EXCEEDED:
                assert self.now >= self.born[delta.id] + (submit.left_ms or 0) / 1000
            if delta.finish or delta.error:
                self.ended[delta.id] = delta

    @invariant()
    def every_page_is_in_one_state(self) -> None:
        pool, running = self.scheduler.pool, self.scheduler.running
        held = Counter(page for seq in running for page in seq.pages)
        free, evictable = Counter(pool._free), Counter(list(pool._evictable))
        fenced = Counter(page for page in pool._fenced if pool._refs[page] == 0)
        states = Counter(dict.fromkeys(held, 1)) + free + evictable + fenced
        assert states == Counter(range(1, pool.total + 1))
        assert {page: pool.references(page) for page in held} == dict(held)
        assert pool.used == len(held)
        assert set(pool._index.values()) == {page for page, key in enumerate(pool._keys) if key is not None}
        assert all(pool._index[key] == page for page, key in enumerate(pool._keys) if key is not None)

    @invariant()
    def only_full_computed_blocks_are_shared(self) -> None:
        owners: dict[int, list[tuple[Sequence, int]]] = {}
        for seq in self.scheduler.running:
            for at, page in enumerate(seq.pages):
                owners.setdefault(page, []).append((seq, at))
        for shared in owners.values():
            if len(shared) > 1:
                blocks = {tuple(seq.tokens[: (at + 1) * PAGE_TOKENS]) for seq, at in shared}
                assert len(blocks) == 1, "a page with two owners"
                assert all(seq.done >= (at + 1) * PAGE_TOKENS for seq, at in shared)

    @invariant()
    def holders_sum_to_the_pool(self) -> None:
        held = held_by(self.scheduler)
        state = self.reporter.state(self.scheduler, self.now)
        assert state.holders == held
        assert sum(h.pages for h in held.values()) + state.free + state.evictable == state.total
        assert sum(h.pages for h in held.values()) == self.scheduler.pool.used
        assert sum(h.requests for h in held.values()) == len(self.requests) - len(self.ended)

    @invariant()
    def cached_chains_are_reachable(self) -> None:
        pool = self.scheduler.pool
        for page, key in enumerate(pool._keys):
            parent = pool._parent[page]
            assert key is None or parent == 0 or pool._keys[parent] is not None

    @invariant()
    def outputs_are_right_so_far(self) -> None:
        for name, output in self.outputs.items():
            assert output == self.expected[name][: len(output)]

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 20 + sum(self.work(submit) for submit in self.requests.values())
        for _ in range(bound):
            if not self.step():
                break
        assert not self.scheduler.busy, "no progress"
        assert set(self.ended) == set(self.requests)
        assert self.scheduler.pool.used == 0
        assert self.scheduler.pool.available == self.scheduler.pool.total
        for name, ended in self.ended.items():
            submit = self.requests[name]
            room = min(CONTEXT, self.scheduler.pool.total * 64) - len(submit.tokens) // 4
            if ended.finish is Finish.LENGTH:
                assert len(self.outputs[name]) == min(submit.max_tokens, room)
            if ended.error is Reason.INTERNAL:
                assert name in self.failing

    def work(self, submit: Submit) -> int:
        """A generous bound of the steps that one request may take, recomputing and waiting included."""
        prompt = len(submit.tokens) // 4
        share = min(self.limits.max_batch_tokens, FLOOR_TOKENS)
        return 4 * (pages_for(prompt) + submit.max_tokens + prompt // share + 10)


Engine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestRandomLife = pytest.mark.timeout(300)(Engine.TestCase)
