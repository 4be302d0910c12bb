"""How requests end, in whatever state, and what the core reports meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from typing import Any

import pytest

from headrace_engine.core.budget import Pace, work_of
from headrace_engine.core.plan import KvSpec
from headrace_engine.core.state import Identity, Reporter, cache_root, held_by
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import fake_kv, generate
from headrace_wire.protocol import Finish, KvGroup, ModelInfo
from headrace_wire.reasons import Reason

STATES = ["queued", "following", "half-prefilled", "decoding", "preempted"]


def bring_to(world: Driven, state: str) -> None:
    """A request "x" in this state."""
    if state == "queued":
        world.submit("blocker", prompt(5, 2), max_tokens=200, priority=1)
        world.step()
    if state == "following":
        world.submit("blocker", prompt(100), max_tokens=200)
    world.submit("x", prompt(100), max_tokens=200, after="blocker" if state == "following" else "")
    world.step({"queued": 1, "following": 1, "half-prefilled": 1, "decoding": 6, "preempted": 6}[state])
    if state == "preempted":
        world.submit("blocker", prompt(5, 2), max_tokens=200, priority=1)
        world.step()
    queued = [seq.id for seq in world.scheduler.queued()]
    assert ("x" in queued) == (state in ("queued", "following", "preempted"))


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
def test_an_abort_in_any_state_ends_once_and_frees_all(state: str, lag: int) -> None:
    world = Driven(sequences=1, budget=40, lag=lag)
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
    world = Driven(sequences=1, budget=40)
    original = world.submit

    def submit(name: str, tokens: list[int], max_tokens: int = 4, **more: Any) -> None:
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
    world = Driven()
    for name in ("a", "b"):
        world.submit(name, prompt(5, ord(name)), max_tokens=10)
    world.step(2)
    world.runner.fail_rows = {world.scheduler.running[0].row: Reason.OUT_OF_MEMORY}
    world.run()
    assert world.end("a").error is Reason.OUT_OF_MEMORY
    assert world.output("b") == generate(prompt(5, ord("b")), 10)


def test_a_lost_step_ends_its_requests_and_no_other() -> None:
    world = Driven(sequences=1)
    world.submit("a", prompt(5), max_tokens=10)
    world.submit("b", prompt(5), max_tokens=10)
    plan = world.scheduler.plan()
    assert plan is not None
    world.take(world.scheduler.fail_step(Reason.INTERNAL))
    assert world.end("a").error is Reason.INTERNAL
    assert world.waiting() == ["b"]


def test_draining_refuses_new_requests_and_finishes_old_ones() -> None:
    world = Driven()
    world.submit("old", prompt(5))
    world.scheduler.draining = True
    world.submit("new", prompt(5))
    assert world.end("new").error is Reason.DRAINING
    world.run()
    assert world.end("old").finish is Finish.LENGTH


def test_requests_that_ended_are_not_kept_until_their_deadline() -> None:
    world = Driven(pages=16, sequences=4)
    seqs: list[weakref.ref[Any]] = []
    for i in range(50):
        world.submit(f"r{i}", prompt(70, seed=i), max_tokens=2, left_ms=3_600_000.0)
        seqs.append(weakref.ref(world.scheduler.waiting[-1]))
        world.run()
    assert not any(ref() for ref in seqs)
    world.take(world.scheduler.expire(3_600.0))
    assert all(world.end(f"r{i}").finish for i in range(50))


def test_the_deadline_of_an_ended_request_is_not_that_of_a_later_one_under_its_id() -> None:
    world = Driven()
    world.submit("a", prompt(5), left_ms=100.0)
    world.run()
    world.deltas.clear()
    world.submit("a", prompt(5), left_ms=5000.0)
    world.take(world.scheduler.expire(1.0))
    world.run()
    assert world.end("a").finish is Finish.LENGTH


def test_many_short_requests_leave_no_trace() -> None:
    world = Driven(pages=16, sequences=4)
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
    world = Driven(pages=20, sequences=2, budget=100)
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


def test_the_report_says_what_the_prefix_cache_was_worth() -> None:
    pace = Pace()
    world = Driven(pages=8, sequences=2, budget=512, pace=pace)
    kv = KvSpec(
        pages=8, groups=[KvGroup(layers=2, bytes_per_token=100), KvGroup(layers=1, bytes_per_token=28)], layout="x"
    )
    reporter = Reporter(Identity(ModelInfo(name="m"), kv, "i"), pace.times)

    def run(name: str, tokens: list[int], max_tokens: int = 40) -> None:
        world.submit(name, tokens, max_tokens=max_tokens)
        while world.scheduler.busy:
            plan = world.step()
            assert plan is not None
            work = work_of(plan)
            reporter.observe(plan, 0.001 + 0.0005 * work.prefill)

    run("cold", prompt(200))
    cache = reporter.state(world.scheduler, 0.0).cache
    assert (cache.blocks, cache.bytes) == (3, 3 * 64 * 128)
    assert (cache.asked_tokens, cache.hit_tokens, cache.saved_prefill_s) == (200, 0, 0.0)
    run("other", prompt(100, seed=5))
    run("warm", prompt(200))
    cache = reporter.state(world.scheduler, 0.0).cache
    assert (cache.asked_tokens, cache.hit_tokens) == (500, 192)
    assert cache.saved_prefill_s == pytest.approx(192 * 0.0005, rel=0.1)
    assert cache.evictions == {"room": 0, "parent": 0, "reset": 0}
    run("large", prompt(500, seed=7), 10)
    cache = reporter.state(world.scheduler, 0.0).cache
    assert cache.evictions["room"] + cache.evictions["parent"] >= 3
    world.scheduler.reset_cache(reporter.next_epoch())
    after = reporter.state(world.scheduler, 0.0).cache
    assert after.evictions["reset"] == cache.blocks > 0
    assert (after.blocks, after.bytes, after.hit_tokens) == (0, 0, 192)


def test_a_shared_page_is_charged_once() -> None:
    world = Driven()
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


def test_the_core_is_imported_without_torch() -> None:
    code = "import sys, headrace_engine.core.process, headrace_engine.runner.driven; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60)
    assert ended.returncode == 0
