"""Random submits, aborts, failures, expiries, resets and steps at lags 0 to 2; the fake runner checks its pages."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.core.sequence import pages_for
from headrace_engine.core.state import held_by
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv, generate
from headrace_wire.protocol import Delta, Finish, Sampling, Submit
from headrace_wire.reasons import Reason

# Prompts are cut from a few documents, so that they share prefixes.
DOCUMENTS = [[(d * 7 + i * 13) % VOCAB for i in range(400)] for d in range(3)]
CONTEXT = 320


class Engine(RuleBasedStateMachine):
    """A scheduler, a fake runner, and what must be true of them."""

    @initialize(
        lag=st.sampled_from([0, 1, 2]),
        pages=st.integers(5, 16),
        sequences=st.integers(1, 5),
        budget=st.sampled_from([5, 33, 64, 200]),
    )
    def start(self, lag: int, pages: int, sequences: int, budget: int) -> None:
        self.limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=CONTEXT, vocab=VOCAB)
        self.scheduler = Scheduler(self.limits, BlockPool(pages), "00")
        self.runner = FakeRunner(lag, fake_kv(pages))
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
        holder: str,
        left_ms: float | None,
    ) -> None:
        submit = Submit(
            id=f"r{len(self.requests)}",
            tokens=array("i", DOCUMENTS[document][:length]).tobytes(),
            sampling=Sampling(),
            max_tokens=max_tokens,
            priority=priority,
            salt=salt,
            holder=holder,
            left_ms=left_ms,
        )
        self.requests[submit.id] = submit
        self.outputs[submit.id] = []
        self.expected[submit.id] = generate(DOCUMENTS[document][:length], max_tokens)
        refused = self.scheduler.submit(submit, self.now)
        self.take(refused)
        assert bool(refused) == (length + 1 > min(CONTEXT, self.scheduler.pool.total * 64))

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
        plan = self.scheduler.plan()
        if plan is not None:
            assert sum(step.count for step in plan.steps) <= self.limits.max_batch_tokens
            assert len(plan.steps) <= len(self.scheduler.running) <= self.limits.max_sequences
            ones = [step.count == 1 for step in plan.steps]
            assert ones == sorted(ones, reverse=True), "rows with one token come first"
            self.runner.launch(plan)
        if self.scheduler.in_flight > (self.runner.lag if plan is not None else 0):
            self.take(self.scheduler.apply(self.runner.collect()))
        elif plan is None:
            return False
        return True

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            assert delta.id not in self.ended, "something came after the end"
            self.outputs[delta.id] += delta.tokens
            submit = self.requests[delta.id]
            assert delta.cached <= max(0, len(submit.tokens) // 4 - 1)
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
    def holders_sum_to_the_pool(self) -> None:
        held = held_by(self.scheduler)
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
        return 4 * (pages_for(prompt) + submit.max_tokens + prompt // self.limits.max_batch_tokens + 10)


Engine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestRandomLife = pytest.mark.timeout(300)(Engine.TestCase)
