"""The scheduler by cases: what each step holds, who goes first, who is preempted, how requests end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.plan import StepPlan
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.core.state import Identity, Reporter, cache_root, held_by
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv, generate
from headrace_wire.protocol import PAGE_TOKENS, Delta, Finish, ModelInfo, Sampling, Submit
from headrace_wire.reasons import Reason


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + i * 7) % VOCAB for i in range(length)]


class World:
    """A scheduler driven by hand, with everything it said."""

    def __init__(self, *, pages: int = 64, sequences: int = 8, budget: int = 256, context: int = 2048, lag: int = 0):
        limits = Limits(max_sequences=sequences, max_batch_tokens=budget, max_tokens=context, vocab=VOCAB)
        self.scheduler = Scheduler(limits, BlockPool(pages), "00")
        self.runner = FakeRunner(lag, fake_kv(pages))
        self.deltas: dict[str, list[Delta]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.plans: list[StepPlan] = []
        self.now = 0.0

    def submit(self, name: str, tokens: list[int], max_tokens: int = 4, **more: object) -> None:
        self.prompts[name] = tokens
        submit = Submit(
            id=name, tokens=array("i", tokens).tobytes(), sampling=Sampling(), max_tokens=max_tokens, **more
        )  # type: ignore[arg-type]
        self.take(self.scheduler.submit(submit, self.now))

    def step(self, count: int = 1) -> StepPlan | None:
        """`count` turns; the last plan."""
        plan = None
        for _ in range(count):
            plan = self.scheduler.plan(self.now)
            if plan is not None:
                self.plans.append(plan)
                self.runner.launch(plan)
            if self.scheduler.in_flight > (self.runner.lag if plan is not None else 0):
                self.take(self.scheduler.apply(self.runner.collect()))
        return plan

    def run(self, limit: int = 5000) -> None:
        """Until nothing is left."""
        for _ in range(limit):
            if not self.scheduler.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def take(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.deltas.setdefault(delta.id, []).append(delta)

    def output(self, name: str) -> list[int]:
        return [token for delta in self.deltas.get(name, []) for token in delta.tokens]

    def end(self, name: str) -> Delta:
        """The terminal Delta; there is exactly one, and it is the last."""
        ends = [delta for delta in self.deltas[name] if delta.finish or delta.error]
        assert len(ends) == 1
        assert self.deltas[name][-1] is ends[0]
        return ends[0]

    def running(self) -> list[str]:
        return [seq.id for seq in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [seq.id for seq in self.scheduler.waiting]


# -- one request


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 300], ids=lambda n: f"prompt-{n}")
@pytest.mark.parametrize("budget", [8, 256], ids=lambda n: f"budget-{n}")
def test_a_request_gets_its_output_whole_or_chunked(lag: int, length: int, budget: int) -> None:
    world = World(budget=budget, lag=lag)
    world.submit("a", prompt(length), max_tokens=70)
    world.run()
    assert world.output("a") == generate(prompt(length), 70)
    assert world.end("a").finish is Finish.LENGTH


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_stop_id_ends_it_and_is_the_last_token(lag: int) -> None:
    world = World(lag=lag)
    stop = generate(prompt(10), 6)[5]
    world.submit("a", prompt(10), max_tokens=50, stop_ids=(stop,))
    world.run()
    assert world.output("a") == generate(prompt(10), 50, (stop,))
    assert world.end("a").finish is Finish.STOP
    assert world.scheduler.pool.used == 0


def test_without_room_for_max_tokens_it_ends_at_the_context() -> None:
    world = World(context=100)
    world.submit("a", prompt(90), max_tokens=1000)
    world.run()
    assert len(world.output("a")) == 10
    assert world.end("a").finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "reason"),
    [
        pytest.param([], 1, Reason.INVALID_REQUEST, id="no-prompt"),
        pytest.param([1], 0, Reason.INVALID_REQUEST, id="no-output"),
        pytest.param([VOCAB], 1, Reason.INVALID_REQUEST, id="token-beyond-vocab"),
        pytest.param([-1], 1, Reason.INVALID_REQUEST, id="negative-token"),
        pytest.param([1] * 128, 1, Reason.CONTEXT_EXCEEDED, id="prompt-fills-the-context"),
    ],
)
def test_the_impossible_is_refused_at_once(tokens: list[int], max_tokens: int, reason: Reason) -> None:
    world = World(context=128)
    world.submit("bad", tokens, max_tokens)
    world.submit("good", prompt(5))
    assert world.end("bad").error is reason
    world.run()
    assert world.end("good").finish is Finish.LENGTH


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    world = World(pages=2, context=1000)
    world.submit("big", prompt(130))
    assert world.end("big").error is Reason.CONTEXT_EXCEEDED
    world.submit("small", prompt(100))
    world.run()
    assert world.end("small").finish is Finish.LENGTH


def test_a_live_id_is_not_taken_twice() -> None:
    world = World()
    world.submit("a", prompt(5))
    with pytest.raises(ValueError, match="a is in use"):
        world.submit("a", prompt(5))


# -- what a step holds


def test_several_prompts_share_a_step() -> None:
    world = World(budget=100)
    for i in range(4):
        world.submit(f"p{i}", prompt(30, seed=i))
    plan = world.step()
    assert plan is not None
    assert [step.count for step in plan.steps] == [30, 30, 30, 10]
    assert [step.sample for step in plan.steps] == [True, True, True, False]


def test_a_long_prompt_among_decodes_costs_no_decode_its_token() -> None:
    world = World(pages=600, budget=64, context=32768, sequences=5)
    for i in range(4):
        world.submit(f"d{i}", prompt(5, seed=i), max_tokens=500)
    world.step()
    world.submit("long", prompt(30000, seed=9))
    before = [len(world.output(f"d{i}")) for i in range(4)]
    for n in range(1, 101):
        plan = world.step()
        assert plan is not None
        assert sum(step.count for step in plan.steps) == 64, "the step stays within the budget and uses it"
        assert [len(world.output(f"d{i}")) for i in range(4)] == [b + n for b in before]


def test_a_prompt_of_a_higher_class_is_prefilled_before_one_already_begun() -> None:
    world = World(budget=64)
    world.submit("low", prompt(600), priority=0)
    world.step()
    world.submit("high", prompt(100, seed=2), priority=5)
    world.step(2)
    assert len(world.output("high")) == 1
    assert world.running() == ["high", "low"]


def test_arrival_decides_inside_a_class() -> None:
    world = World(sequences=2)
    for name in ("a", "b", "c"):
        world.submit(name, prompt(5))
    world.step()
    assert (world.running(), world.waiting()) == (["a", "b"], ["c"])


# -- priorities and preemption


def test_a_high_class_gets_a_slot_when_low_ones_hold_all() -> None:
    world = World(sequences=2)
    world.submit("low1", prompt(5, 1), max_tokens=300)
    world.submit("low2", prompt(5, 2), max_tokens=300)
    world.step(3)
    world.submit("high", prompt(5, 3), max_tokens=3, priority=10)
    world.step()
    assert world.running() == ["high", "low1"]
    assert world.waiting() == ["low2"]
    world.submit("later", prompt(5, 4), max_tokens=3)
    world.step(3)
    assert world.running() == ["low1", "low2"], "re-admitted before fresh ones of its class"
    world.run()
    assert world.output("low2") == generate(prompt(5, 2), 300)


def test_equals_are_never_preempted_for_an_arrival() -> None:
    world = World(sequences=1)
    world.submit("a", prompt(5), max_tokens=50, priority=3)
    world.step()
    world.submit("b", prompt(5), priority=3)
    world.step(5)
    assert world.running() == ["a"]
    assert world.scheduler.preemptions == 0


def test_a_high_class_takes_pages_only_where_that_is_enough() -> None:
    world = World(pages=8, sequences=4, budget=1024)
    world.submit("top", prompt(260, 1), max_tokens=50, priority=10)  # 5 pages
    world.submit("low", prompt(60, 2), max_tokens=60, priority=0)  # 1 or 2 pages
    world.step()
    world.submit("high", prompt(300, 3), priority=5)  # 5 pages: not to be had while top runs
    world.step()
    assert world.running() == ["top", "low"], "low is not preempted in vain"


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_nearly_full_pool_never_stalls_nor_thrashes(lag: int) -> None:
    world = World(pages=10, sequences=8, budget=512, context=640, lag=lag)
    for i in range(8):
        world.submit(f"r{i}", prompt(20 + 9 * i, seed=i), max_tokens=300)
    world.run()
    for i in range(8):
        assert world.output(f"r{i}") == generate(prompt(20 + 9 * i, seed=i), 300)
    assert world.scheduler.preemptions > 0
    # Each preemption was paid for with at least a block of progress, and recomputing is bounded by what was done.
    assert world.scheduler.preemptions <= 8 * 300 // PAGE_TOKENS + 8


def test_no_victim_twice_without_a_block_of_progress_between() -> None:
    world = World(pages=10, sequences=8, budget=512, context=640)
    for i in range(8):
        world.submit(f"r{i}", prompt(20 + 9 * i, seed=i), max_tokens=300)
    marks: dict[str, list[int]] = {}  # computed tokens at each preemption
    while world.scheduler.busy:
        before = {seq.id: seq.computed for seq in world.scheduler.running}
        count = world.scheduler.preemptions
        world.step()
        if world.scheduler.preemptions > count:
            for seq in world.scheduler.waiting:
                if seq.id in before:
                    marks.setdefault(seq.id, []).append(before[seq.id])
    assert any(len(computed) > 1 for computed in marks.values()), "somebody was preempted more than once"
    for computed in marks.values():
        assert all(after >= first + PAGE_TOKENS for first, after in zip(computed, computed[1:], strict=False))


# -- prefix cache


def run_one(world: World, name: str, tokens: list[int], **more: object) -> int:
    """Cached tokens of a request run alone."""
    world.submit(name, tokens, **more)  # type: ignore[arg-type]
    world.run()
    assert world.output(name) == generate(tokens, 4)
    return world.end(name).cached


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        pytest.param(200, 200, 192, id="same-prompt"),
        pytest.param(128, 128, 64, id="whole-prompt-cached-still-computes"),
        pytest.param(63, 63, 0, id="no-full-block"),
        pytest.param(130, 70, 64, id="shorter"),
        pytest.param(130, 300, 128, id="longer"),
    ],
)
@pytest.mark.parametrize("lag", [0, 1])
def test_full_blocks_of_a_shared_prefix_are_reused(first: int, second: int, hit: int, lag: int) -> None:
    world = World(lag=lag)
    assert run_one(world, "a", prompt(first)) == 0
    assert run_one(world, "b", prompt(second)) == hit
    firsts = [delta for delta in world.deltas["b"] if delta.tokens]
    assert firsts[0].cached == firsts[-1].cached == hit


def test_a_follow_up_hits_the_output_too() -> None:
    world = World()
    world.submit("a", prompt(100), max_tokens=100)
    world.run()
    assert run_one(world, "b", prompt(100) + world.output("a")) == 192


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({}, {"salt": b"t"}, id="with-and-without-salt"),
        pytest.param({"salt": b"s"}, {"salt": b"t"}, id="two-salts"),
        pytest.param({}, {"adapter": b"t"}, id="with-and-without-adapter"),
        pytest.param({"adapter": b"v1"}, {"adapter": b"v2"}, id="one-adapter-name-two-contents"),
        pytest.param({"salt": b"x"}, {"adapter": b"x"}, id="salt-equal-to-an-adapter"),
    ],
)
def test_prefixes_are_isolated(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    world = World()
    assert run_one(world, "a", prompt(200), **one) == 0
    assert run_one(world, "b", prompt(200), **other) == 0
    assert run_one(world, "c", prompt(200), **one) == 192
    assert run_one(world, "d", prompt(200), **other) == 192


def test_a_reset_begins_a_new_epoch_also_for_what_runs_on() -> None:
    world = World()
    run_one(world, "before", prompt(200))
    world.submit("across", prompt(300), max_tokens=4)
    world.submit("queued", prompt(200), max_tokens=4)
    world.scheduler.limits = Limits(max_sequences=1, max_batch_tokens=64, max_tokens=2048, vocab=VOCAB)
    world.step()
    assert world.running() == ["across"]
    world.scheduler.reset_cache("01")
    world.run()
    assert world.end("queued").cached == 0
    assert run_one(world, "after", prompt(300)) == 192, "only what was computed since is found"


def test_recomputing_is_not_a_cache_hit() -> None:
    world = World(sequences=1)
    world.submit("low", prompt(200), max_tokens=50)
    world.step(5)
    world.submit("high", prompt(5), priority=1)
    world.run()
    assert world.scheduler.preemptions == 1
    assert world.end("low").cached == 0


def test_a_block_of_a_failed_step_is_never_found() -> None:
    world = World(lag=1, budget=64)
    world.submit("bad", prompt(200))
    world.step(2)  # two chunks launched, one collected
    world.runner.fail_rows = {world.scheduler.running[0].row: Reason.INTERNAL}
    world.run()
    assert world.end("bad").error is Reason.INTERNAL
    assert run_one(world, "good", prompt(200)) == 64


# -- ends


STATES = ["queued", "half-prefilled", "decoding", "preempted"]


def bring_to(world: World, state: str) -> None:
    """A request "x" in this state."""
    if state == "queued":
        world.submit("blocker", prompt(5, 2), max_tokens=200, priority=1)
        world.step()
    world.submit("x", prompt(100), max_tokens=200)
    world.step({"queued": 1, "half-prefilled": 1, "decoding": 6, "preempted": 6}[state])
    if state == "preempted":
        world.submit("blocker", prompt(5, 2), max_tokens=200, priority=1)
        world.step()


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_an_abort_in_any_state_ends_once_and_frees_all(state: str, lag: int) -> None:
    world = World(sequences=1, budget=40, lag=lag)
    bring_to(world, state)
    assert (world.waiting() == ["x"]) == (state in ("queued", "preempted"))
    world.take(world.scheduler.abort(["x"], Reason.CANCELLED))
    world.take(world.scheduler.abort(["x"], Reason.CANCELLED))
    said = len(world.deltas["x"])
    assert world.end("x").error is Reason.CANCELLED
    world.take(world.scheduler.abort_all(Reason.CANCELLED))
    world.run()
    pool = world.scheduler.pool
    assert len(world.deltas["x"]) == said
    assert (pool.used, pool.available) == (0, pool.total)


@pytest.mark.parametrize("state", STATES)
def test_a_deadline_in_any_state_ends_with_its_reason(state: str) -> None:
    world = World(sequences=1, budget=40)
    original = world.submit

    def submit(name: str, tokens: list[int], max_tokens: int = 4, **more: object) -> None:
        original(name, tokens, max_tokens, left_ms=500.0 if name == "x" else None, **more)

    world.submit = submit  # type: ignore[method-assign]
    bring_to(world, state)
    world.take(world.scheduler.expire(0.4))
    assert not any(delta.error for delta in world.deltas.get("x", []))
    world.take(world.scheduler.expire(0.5))
    assert world.end("x").error is Reason.DEADLINE_EXCEEDED
    world.run()
    assert world.scheduler.pool.used == 0


def test_a_failed_row_takes_only_itself_down() -> None:
    world = World()
    for name in ("a", "b"):
        world.submit(name, prompt(5, ord(name)), max_tokens=10)
    world.step(2)
    world.runner.fail_rows = {world.scheduler.running[0].row: Reason.OUT_OF_MEMORY}
    world.run()
    assert world.end("a").error is Reason.OUT_OF_MEMORY
    assert world.output("b") == generate(prompt(5, ord("b")), 10)


def test_a_lost_step_ends_its_requests_and_no_other() -> None:
    world = World(sequences=1)
    world.submit("a", prompt(5), max_tokens=10)
    world.submit("b", prompt(5), max_tokens=10)
    plan = world.scheduler.plan(0.0)
    assert plan is not None
    world.take(world.scheduler.fail_step(Reason.INTERNAL))
    assert world.end("a").error is Reason.INTERNAL
    assert world.waiting() == ["b"]


def test_draining_refuses_new_requests_and_finishes_old_ones() -> None:
    world = World()
    world.submit("old", prompt(5))
    world.scheduler.draining = True
    world.submit("new", prompt(5))
    assert world.end("new").error is Reason.DRAINING
    world.run()
    assert world.end("old").finish is Finish.LENGTH


def test_many_short_requests_leave_no_trace() -> None:
    world = World(pages=16, sequences=4)
    for i in range(2000):
        world.submit(f"r{i}", prompt(70, seed=i % 50), max_tokens=2)
        world.step(2)
    world.run()
    scheduler = world.scheduler
    assert scheduler.pool.used == 0
    assert not (scheduler.running or scheduler.waiting or scheduler._live or scheduler._draft)
    assert len(scheduler.pool._index) <= 16
    assert scheduler.pool.available == 16


# -- state


def test_the_report_counts_what_is_there() -> None:
    world = World(pages=20, sequences=2, budget=100)
    model = ModelInfo(name="m", digest="d", kv_dtype="float32")
    reporter = Reporter(Identity(model, fake_kv(20), "pod-1"))
    world.submit("a", prompt(250), max_tokens=5, holder="g1")
    world.submit("b", prompt(100, 2), max_tokens=5, holder="g2")
    world.now = 1.0
    world.submit("c", prompt(40, 3), max_tokens=5, holder="g2")
    plan = world.step()
    assert plan is not None
    reporter.observe(plan, 0.05)
    state = reporter.state(world.scheduler, now=3.0)
    assert (state.instance, state.seq, state.epoch) == ("pod-1", 1, 0)
    assert (state.running, state.waiting) == (1, 2)
    assert state.holders["g1"].pages == 4
    assert state.holders["g1"].queued_tokens == 150
    assert state.holders["g2"].queued_tokens == 140
    assert state.queued_tokens == 290
    assert state.oldest_waiting_s == 3.0
    assert state.prefill_rate == pytest.approx(2000.0)
    assert (state.total, state.free, state.evictable) == (20, 16, 0)
    world.run()
    state = reporter.state(world.scheduler, now=4.0)
    assert (state.seq, state.running, state.waiting, state.holders) == (2, 0, 0, {})
    assert state.oldest_waiting_s is None
    assert state.free + state.evictable == 20
    assert state.evictable == 4  # three full blocks of a, one of b


def test_a_shared_page_is_charged_once() -> None:
    world = World()
    world.submit("first", prompt(200), max_tokens=50, holder="g1")
    world.step()
    world.submit("second", prompt(200), max_tokens=50, holder="g2")
    world.step()
    held = held_by(world.scheduler)
    assert (held["g1"].pages, held["g2"].pages) == (4, 1)
    assert world.scheduler.pool.used == 5


def test_the_cache_root_knows_model_layout_dtype_and_epoch() -> None:
    model = ModelInfo(name="m", digest="d", kv_dtype="float32")
    roots = {
        cache_root(model, fake_kv(1), 0),
        cache_root(model, fake_kv(1), 1),
        cache_root(ModelInfo(name="m", digest="e", kv_dtype="float32"), fake_kv(1), 0),
        cache_root(ModelInfo(name="m", digest="d", kv_dtype="bfloat16"), fake_kv(1), 0),
    }
    assert len(roots) == 4
    assert cache_root(model, fake_kv(9), 0) in roots, "the pool's size does not matter"
