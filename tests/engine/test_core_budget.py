"""The step-time model and the prefill share: what is learnt, what is kept, what never starves."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.core.budget import FLOOR_TOKENS, Pace, StepTimes, StepWork, beside, work_of
from headrace_engine.core.plan import KvSpec, StepPlan
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.driven import Driven, prompt
from headrace_wire.protocol import ModelInfo

works = st.builds(StepWork, st.integers(0, 256), st.integers(0, 100_000), st.integers(0, 2048))
seconds = st.floats(0, 10, allow_nan=False)


def cost(work: StepWork) -> float:
    """A machine's true step time, s."""
    return 0.004 + 0.0006 * work.decodes + 2e-7 * work.context + 0.0004 * work.prefill


def learnt(noise: float = 0.0, steps: int = 300) -> StepTimes:
    dice = random.Random(1)
    times = StepTimes()
    for _ in range(steps):
        prefill = dice.choice((0, 0, 64, 200, 512))
        decodes = dice.randrange(0, 32)
        work = StepWork(decodes, decodes * dice.randrange(50, 400) + prefill, prefill)
        times.observe(work, cost(work) * (1 + dice.uniform(-noise, noise)))
    return times


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.02), (0.2, 0.15)], ids=["exact", "noisy"])
@pytest.mark.parametrize(
    "work", [StepWork(8, 1600, 0), StepWork(16, 3000, 256), StepWork(0, 512, 512)], ids=["decode", "mixed", "prefill"]
)
def test_what_is_learnt_predicts(work: StepWork, noise: float, within: float) -> None:
    assert learnt(noise).predict(work) == pytest.approx(cost(work), rel=within)


def test_a_machine_that_slows_down_is_noticed() -> None:
    times = learnt()
    work = StepWork(8, 1600, 128)
    for step in range(600):
        seen = StepWork(8, 1600 + step % 7, 128 if step % 3 else 0)
        times.observe(seen, 2 * cost(seen))
    assert times.predict(work) == pytest.approx(2 * cost(work), rel=0.15)


def test_long_decoding_does_not_forget_what_prompts_cost() -> None:
    times = learnt()
    for step in range(20_000):
        work = StepWork(8, 1600 + step % 500, 0)
        times.observe(work, cost(work))
    assert times.predict(StepWork(8, 1600, 256)) == pytest.approx(cost(StepWork(8, 1600, 256)), rel=0.1)


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
    larger = StepWork(one.decodes + more.decodes, one.context + more.context, one.prefill + more.prefill)
    assert times.predict(larger) >= predicted


@given(st.integers(1, 64), st.integers(1, 20_000), st.floats(0.001, 1.0), st.floats(1.0, 5.0), st.integers(1, 2048))
@settings(max_examples=200, deadline=None)
def test_the_share(decodes: int, context: int, target: float, looser: float, most: int) -> None:
    """The most that keeps the target, never below the floor, never above what there is, more for a looser target."""
    pace = Pace()
    pace.times = learnt()
    share = pace.share(decodes, context, target, most)
    assert min(FLOOR_TOKENS, most) <= share <= most
    if share > FLOOR_TOKENS:
        assert pace.times.predict(StepWork(decodes, context, share)) <= target + 1e-9
    if share < most:
        assert pace.times.predict(StepWork(decodes, context, share + 1)) > target - 1e-9
    assert pace.share(decodes, context, target * looser, most) >= share


@pytest.mark.parametrize(
    ("default", "decodes", "target", "steps", "limited"),
    [
        pytest.param(None, 8, 0.02, 300, True, id="a-target"),
        pytest.param(None, 8, None, 300, False, id="no-target"),
        pytest.param(0.02, 8, None, 300, True, id="the-default"),
        pytest.param(None, 0, 0.02, 300, False, id="nobody-to-disturb"),
        pytest.param(None, 8, 0.02, 3, False, id="not-yet-known"),
    ],
)
def test_when_it_limits(default: float | None, decodes: int, target: float | None, steps: int, limited: bool) -> None:
    pace = Pace(default)
    pace.times = learnt(steps=steps)
    assert (pace.share(decodes, 100, target, 512) < 512) is limited


# -- in the scheduler


def longest_gap(world: Driven, pace: Pace | None) -> float:
    """Two streams run, a long prompt arrives: the longest step beside them, in the machine's true time."""
    for name in ("a", "b"):
        world.submit(name, prompt(20, seed=len(name)), max_tokens=400, tpot_ms=60.0)
    gaps: list[float] = []

    def step() -> StepPlan:
        plan = world.step()
        assert plan is not None
        work = work_of(plan)
        if pace is not None:
            pace.times.observe(work, cost(work))
        gaps.append(cost(work))
        return plan

    for index in range(30):
        if index in (5, 10, 15):
            world.submit(f"warm-{index}", prompt(50 * index, seed=index), max_tokens=1)
        step()
    gaps.clear()
    world.submit("long", prompt(1500, seed=99), max_tokens=1)
    while not world.deltas.get("long"):
        plan = step()
        assert sum(row.count == 1 for row in plan.steps) >= 2, "a stream got no token"
        assert max(row.count for row in plan.steps) >= FLOOR_TOKENS or world.deltas.get("long")
    return max(gaps)


def test_a_long_prompt_keeps_the_target_of_running_streams() -> None:
    assert longest_gap(Driven(budget=1024), None) > 0.3
    pace = Pace()
    assert longest_gap(Driven(budget=1024, pace=pace), pace) <= 0.061


def test_the_rate_is_what_a_new_prompt_would_get() -> None:
    pace = Pace()
    world = Driven(budget=1024, pace=pace)
    reporter = Reporter(Identity(ModelInfo(name="m"), KvSpec(pages=64, groups=[], layout="fake"), "i"), pace.times)
    longest_gap(world, None)
    assert reporter.state(world.scheduler, 0.0).prefill_rate == 0.0
    pace.times = learnt()
    rows, context, target = beside([seq for seq in world.scheduler.running if seq.known > seq.prompt])
    tokens = pace.share(rows, context, target, 1024)
    expected = tokens / cost(StepWork(rows, context, tokens))
    assert (rows, target) == (2, 0.06)
    assert reporter.state(world.scheduler, 0.0).prefill_rate == pytest.approx(expected, rel=0.05)
