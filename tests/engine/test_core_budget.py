"""The step-time model and the prefill share: what is learnt, what is kept, what never starves."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.core.budget import (
    BLOCK,
    FLOOR_TOKENS,
    PROBE_TOKENS,
    STRETCH,
    Pace,
    StepTimes,
    StepWork,
    Streams,
    chunk_attends,
    work_of,
)
from headrace_engine.core.plan import KvSpec, StepPlan
from headrace_engine.core.state import Identity, Reporter, beside
from headrace_engine.runner.driven import Driven, prompt
from headrace_wire.protocol import ModelInfo

works = st.builds(
    StepWork, st.integers(0, 256), st.integers(0, 100_000), st.integers(0, 2048), st.floats(0, 1e7, allow_nan=False)
)
seconds = st.floats(0, 10, allow_nan=False)


def cost(work: StepWork) -> float:
    """A machine's true step time, s."""
    tokens = 0.0006 * work.decodes + 0.0004 * work.prefill
    return 0.004 + tokens + 2e-7 * work.context + 1e-7 * work.attended


def beside_streams(decodes: int, context: int, prefill: int, depth: int = 0) -> StepWork:
    return StepWork(decodes, context, prefill, chunk_attends(depth, prefill))


def learnt(noise: float = 0.0, steps: int = 300) -> StepTimes:
    dice = random.Random(1)
    times = StepTimes()
    for _ in range(steps):
        prefill = dice.choice((0, 0, 64, 200, 512))
        decodes = dice.randrange(0, 32)
        depth = dice.randrange(0, 2000)
        work = beside_streams(decodes, decodes * dice.randrange(50, 400) + prefill, prefill, depth)
        times.observe(work, cost(work) * (1 + dice.uniform(-noise, noise)))
    return times


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.02), (0.2, 0.15)], ids=["exact", "noisy"])
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(StepWork(8, 1600, 0), id="decode"),
        pytest.param(beside_streams(16, 3000, 256), id="mixed"),
        pytest.param(beside_streams(0, 512, 512), id="prefill"),
        pytest.param(beside_streams(8, 4000, 400, depth=2000), id="deep-in-a-prompt"),
    ],
)
def test_what_is_learnt_predicts(work: StepWork, noise: float, within: float) -> None:
    assert learnt(noise).predict(work) == pytest.approx(cost(work), rel=within)


def test_a_machine_that_slows_down_is_noticed() -> None:
    times = learnt()
    work = beside_streams(8, 1600, 128)
    for step in range(600):
        seen = beside_streams(8, 1600 + step % 7, 128 if step % 3 else 0)
        times.observe(seen, 2 * cost(seen))
    assert times.predict(work) == pytest.approx(2 * cost(work), rel=0.15)


def test_long_decoding_does_not_forget_what_prompts_cost() -> None:
    times = learnt()
    for step in range(20_000):
        work = StepWork(8, 1600 + step % 500, 0)
        times.observe(work, cost(work))
    seldom = beside_streams(8, 1600, 256)
    assert times.predict(seldom) == pytest.approx(cost(seldom), rel=0.1)


@given(st.lists(st.tuples(works, seconds), max_size=60), works, works)
@settings(max_examples=150, deadline=None)
def test_any_past_gives_finite_rising_predictions(
    past: list[tuple[StepWork, float]], one: StepWork, more: StepWork
) -> None:
    times = StepTimes()
    for work, took in past:
        times.observe(work, took)
    predicted = times.predict(one)
    assert 0 <= predicted < math.inf
    larger = StepWork(
        one.decodes + more.decodes,
        one.context + more.context,
        one.prefill + more.prefill,
        one.attended + more.attended,
    )
    assert times.predict(larger) >= predicted


@given(
    st.builds(Streams, st.integers(1, 64), st.integers(1, 20_000), st.floats(0.001, 1.0), st.integers(0, 4000)),
    st.floats(1.0, 5.0),
    st.integers(1, 2048),
)
@settings(max_examples=200, deadline=None)
def test_the_share(streams: Streams, looser: float, most: int) -> None:
    """The most that keeps the target, never below the floor, never above what there is, more for a looser target."""
    pace = Pace()
    pace.times = learnt()
    target = pace.target_s(streams)

    def predicted(prefill: int) -> float:
        return pace.times.predict(beside_streams(streams.rows, streams.context, prefill, streams.depth))

    share = pace.share(streams, most)
    assert min(FLOOR_TOKENS, BLOCK - streams.depth % BLOCK, most) <= share <= most
    if share > FLOOR_TOKENS:
        assert predicted(share) <= target + 1e-9
    if share < most:
        assert predicted(share + 1) > target - 1e-9
    assert pace.share(replace(streams, target_s=target * looser), most) >= share
    assert pace.share(replace(streams, depth=streams.depth + 8 * BLOCK), most) <= share


@pytest.mark.parametrize(
    ("stretch", "rows", "target", "steps", "expected"),
    [
        pytest.param(None, 8, 0.05, 300, "limited", id="a-target"),
        pytest.param(None, 8, None, 300, "most", id="no-target-and-no-default"),
        pytest.param(STRETCH, 8, None, 300, "limited", id="the-default"),
        pytest.param(STRETCH, 8, 0.2, 300, "most", id="a-loose-target-before-the-default"),
        pytest.param(STRETCH, 0, None, 300, "most", id="nobody-to-disturb"),
        pytest.param(STRETCH, 8, None, 3, "probe", id="not-yet-known"),
        pytest.param(STRETCH, 0, None, 3, "most", id="not-yet-known-and-nobody-to-disturb"),
        pytest.param(STRETCH, 8, 0.001, 300, "floor", id="a-target-out-of-reach"),
    ],
)
def test_what_limits_the_share(
    stretch: float | None, rows: int, target: float | None, steps: int, expected: str
) -> None:
    pace = Pace(stretch)
    pace.times = learnt(steps=steps)
    share = pace.share(Streams(rows, 100, target), 300)
    kinds = {300: "most", PROBE_TOKENS: "probe", FLOOR_TOKENS: "floor"}
    assert kinds.get(share, "limited") == expected


@given(st.integers(0, 3000), st.floats(0.005, 0.5))
@settings(max_examples=200, deadline=None)
def test_the_share_ends_where_the_time_ends(depth: int, seconds: float) -> None:
    """A part of a block takes as long as all of it: one token more would be too slow, or too many."""
    times = learnt()
    streams = Streams(4, 800, None, depth)
    tokens = times.prefill_within(streams, seconds)
    assert math.isfinite(tokens)

    def takes(count: int) -> float:
        return times.predict(beside_streams(4, 800, count, depth))

    if tokens >= 1:
        assert takes(int(tokens)) <= seconds * (1 + 1e-9)
    assert takes(int(tokens) + 1) > seconds * (1 - 1e-9)


def test_a_part_of_a_block_attends_as_all_of_it() -> None:
    assert chunk_attends(1024, 1) / 1024.5 == chunk_attends(1024, 64) / 1056 == 64
    assert chunk_attends(1024, 65) / 1056.5 == 128
    assert chunk_attends(1024 + 40, 24) == chunk_attends(1024, 64), "the rest of a block, as all of it"
    assert chunk_attends(1024 + 40, 25) == chunk_attends(1024, 65), "blocks begin where pages do"
    assert chunk_attends(0, 512) == 512 * 256


def test_the_default_stretches_what_the_streams_alone_take() -> None:
    pace = Pace()
    pace.times = learnt()
    streams = Streams(8, 1600)
    alone = pace.times.predict(StepWork(8, 1600, 0))
    share = pace.share(streams, 10_000)
    assert pace.times.predict(beside_streams(8, 1600, share)) == pytest.approx(STRETCH * alone, rel=0.02)
    assert pace.share(Streams(64, 20_000), 10_000) > share, "longer steps of more streams leave more for prompts"


def test_saved_seconds_are_what_computing_the_found_tokens_would_have_added() -> None:
    times = learnt()
    without, whole = beside_streams(0, 640, 128, depth=512), beside_streams(0, 640, 640)
    assert times.prefill_alone(512) == pytest.approx(cost(whole) - cost(without), rel=0.02)
    assert StepTimes().prefill_alone(512) == 0.0


# -- in the scheduler


class Machine:
    """A scheduler whose steps take what `cost` says, and the gaps of every stream in that time."""

    def __init__(self, pace: Pace | None, budget: int = 1024):
        self.pace = pace
        self.world = Driven(pages=256, sequences=16, budget=budget, context=4096, pace=pace)
        self.now = 0.0
        self.seen: dict[str, float] = {}  # when a stream's latest token came
        self.gaps: list[float] = []

    def step(self) -> StepPlan:
        before = {name: len(deltas) for name, deltas in self.world.deltas.items()}
        plan = self.world.step()
        assert plan is not None
        work = work_of(plan)
        self.now += cost(work)
        if self.pace is not None:
            self.pace.times.observe(work, cost(work))
        for name, deltas in self.world.deltas.items():
            if len(deltas) > before.get(name, 0):
                if name in self.seen and name != "long":
                    self.gaps.append(self.now - self.seen[name])
                self.seen[name] = self.now
        return plan

    def long_prompt_arrives(self, tokens: int, **more: Any) -> float:
        """A prompt beside the streams; seconds until its first token."""
        began = self.now
        self.world.submit("long", prompt(tokens, seed=99), max_tokens=1, **more)
        while "long" not in self.world.deltas:
            plan = self.step()
            chunk = max(plan.steps, key=lambda row: row.count)
            floor = min(FLOOR_TOKENS, BLOCK - chunk.start % BLOCK)
            assert chunk.count >= floor or "long" in self.world.deltas
        return self.now - began


def with_streams(pace: Pace | None, count: int, warm: bool = False, **more: Any) -> Machine:
    """Streams that have decoded for a while; `warm`: beside some prompts."""
    machine = Machine(pace)
    for index in range(count):
        machine.world.submit(f"s{index}", prompt(20 + index, seed=index), max_tokens=500, **more)
    for index in range(60):
        if warm and index in (10, 20, 30):
            machine.world.submit(f"warm-{index}", prompt(25 * index, seed=50 + index), max_tokens=1)
        machine.step()
    machine.gaps.clear()
    for _ in range(20):
        machine.step()
    return machine


def test_a_long_prompt_keeps_the_target_of_running_streams() -> None:
    free = with_streams(None, 2, tpot_ms=60.0)
    free.long_prompt_arrives(1500)
    assert max(free.gaps) > 0.3
    paced = with_streams(Pace(), 2, warm=True, tpot_ms=60.0)
    paced.long_prompt_arrives(1500)
    assert max(paced.gaps) <= 0.061


@pytest.mark.parametrize("warm", [False, True], ids=["prompts-not-seen-before", "prompts-seen"])
def test_without_targets_no_gap_beside_a_long_prompt_is_five_times_the_median(warm: bool) -> None:
    """Eight streams, then 2,000 tokens: what the first streams' own prompts taught is enough."""
    paced = with_streams(Pace(), 8, warm)
    alone = median(paced.gaps)
    paced.gaps.clear()
    took = paced.long_prompt_arrives(2000)
    assert max(paced.gaps) <= 5 * alone
    assert max(paced.gaps) > 1.5 * alone, "the prompt gets a good part of each step"
    free = with_streams(None, 8)
    free.gaps.clear()
    free_took = free.long_prompt_arrives(2000)
    assert max(free.gaps) > 5 * alone, "without a pace it would be"
    assert took <= 2.5 * free_took, "and the prompt does not wait long for it"


def test_a_prompt_never_starves_beside_streams_whose_target_cannot_be_met() -> None:
    machine = with_streams(Pace(), 8, tpot_ms=1.0)
    before = len(machine.world.plans)
    machine.long_prompt_arrives(1600)
    assert len(machine.world.plans) - before <= -(-1600 // FLOOR_TOKENS) + 1


def test_the_strictest_target_counts() -> None:
    machine = with_streams(Pace(), 2, warm=True, tpot_ms=400.0)
    machine.world.submit("strict", prompt(5, seed=77), max_tokens=500, tpot_ms=30.0)
    for _ in range(10):
        machine.step()
    machine.gaps.clear()
    machine.long_prompt_arrives(1500)
    assert max(machine.gaps) <= 0.031


def test_the_rate_is_what_a_new_prompt_would_get() -> None:
    machine = with_streams(None, 2, tpot_ms=60.0)
    world, pace = machine.world, Pace()
    world.scheduler.pace = pace
    reporter = Reporter(Identity(ModelInfo(name="m"), KvSpec(pages=64, groups=[], layout="fake"), "i"), pace.times)
    assert reporter.state(world.scheduler, 0.0).prefill_rate == 0.0
    pace.times = learnt()
    streams = beside([seq for seq in world.scheduler.running if seq.known > seq.prompt])
    assert (streams.rows, streams.target_s) == (2, 0.06)
    tokens = pace.share(streams, 1022)
    expected = tokens / cost(beside_streams(2, streams.context, tokens))
    assert reporter.state(world.scheduler, 0.0).prefill_rate == pytest.approx(expected, rel=0.05)
    before = machine.now
    world.submit("new", prompt(tokens, seed=5), max_tokens=1)
    machine.step()
    assert world.end("new").finish is not None
    assert tokens / (machine.now - before) == pytest.approx(expected, rel=0.05), "and it does get it"
