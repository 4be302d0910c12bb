"""The measurement at the start: steps of made-up sequences that leave nothing behind but what steps take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_engine.core.budget import LEAST_STEPS, StepTimes, StepWork, work_of
from headrace_engine.core.measure import SECONDS, Probe, measure
from headrace_engine.core.plan import Runner, StepPlan, StepResult
from headrace_engine.core.scheduler import Limits
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv, generate
from headrace_wire.reasons import Reason

LIMITS = Limits(max_sequences=16, max_batch_tokens=512, max_tokens=2048, vocab=VOCAB)
FIXED, ROW, TOKEN, PROMPT, ATTENDED = 0.002, 0.0002, 1e-7, 4e-5, 5e-9  # seconds


def cost(work: StepWork, slower: float = 1.0) -> float:
    parts = FIXED + ROW * work.decodes + TOKEN * work.context + PROMPT * work.prefill + ATTENDED * work.attended
    return slower * parts


class Machine:
    """A fake runner whose steps take time on a clock of its own."""

    def __init__(self, lag: int = 0, pages: int = 256, slower: float = 1.0, cold: float = 0.0):
        self.cold = cold  # seconds that the first step takes besides
        self.fake = FakeRunner(lag, fake_kv(pages))
        self.lag, self.kv, self.slower, self.now = lag, self.fake.kv, slower, 0.0
        self.plans: list[StepPlan] = []
        self.fails_at: int | None = None  # the step whose rows fail

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        if len(self.plans) == self.fails_at:
            self.fake.fail_rows = {plan.steps[0].row: Reason.INTERNAL}
        self.fake.launch(plan)

    def collect(self) -> StepResult:
        took = cost(work_of(self.plans[-1]), self.slower) + (self.cold if len(self.plans) == 1 else 0.0)
        self.now += took
        result = self.fake.collect()
        return StepResult(number=result.number, tokens=result.tokens, failed=result.failed, ms=1000 * took)

    def clock(self) -> float:
        return self.now


def measured(machine: Machine, limits: Limits = LIMITS) -> tuple[StepTimes, list[int]]:
    times = StepTimes()
    return times, measure(machine, limits, times, machine.clock)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_steps_are_known_before_the_first_request(lag: int) -> None:
    times, _ = measured(Machine(lag))
    assert times.known
    told = times.told
    assert told is not None and told.steps >= LEAST_STEPS
    assert told.fixed_s == pytest.approx(FIXED, rel=0.1)
    assert told.sequence_s == pytest.approx(ROW, rel=0.1)
    assert told.prefill_token_s == pytest.approx(PROMPT, rel=0.1)
    unseen = StepWork(decodes=8, context=4000, prefill=300, attended=45_000)
    assert times.predict(unseen) == pytest.approx(cost(unseen), rel=0.1)


@pytest.mark.parametrize("slower", [1, 10, 100, 3000], ids=lambda x: f"{x} times slower")
def test_it_ends_in_time_however_slow_the_machine_is(slower: float) -> None:
    machine = Machine(slower=slower)
    times, _ = measured(machine)
    longest = max(cost(work_of(plan), slower) for plan in machine.plans)
    assert machine.now <= 2 * SECONDS + longest
    if slower <= 10:
        assert times.known
    elif slower == 3000:
        assert not times.known and times.told is None and len(machine.plans) <= 4


@pytest.mark.parametrize("cold", [0.1, 0.2, 0.4], ids=lambda x: f"{x} s")
def test_a_first_step_that_builds_what_is_built_once_is_no_measure_of_the_others(cold: float) -> None:
    times, _ = measured(Machine(slower=3, cold=cold))
    told = times.told
    assert told is not None
    assert told.fixed_s == pytest.approx(3 * FIXED, rel=0.1)
    assert told.prefill_token_s == pytest.approx(3 * PROMPT, rel=0.1)


def test_a_first_step_beyond_all_time_ends_it() -> None:
    machine = Machine(cold=2 * SECONDS)
    times, left = measured(machine)
    assert times.told is None and len(machine.plans) == 1 and left


@pytest.mark.parametrize(
    ("limits", "pages"),
    [
        pytest.param(replace(LIMITS, max_sequences=1, max_batch_tokens=1), 4, id="one token a step"),
        pytest.param(replace(LIMITS, max_tokens=16), 1, id="one page"),
        pytest.param(replace(LIMITS, max_sequences=1000, max_batch_tokens=4096, max_tokens=8192), 2000, id="large"),
        pytest.param(replace(LIMITS, max_sequences=256), 9, id="few pages"),
        pytest.param(replace(LIMITS, max_tokens=2), 1, id="hardly any context"),
    ],
)
def test_it_stays_within_the_engine_s_limits_and_pool(limits: Limits, pages: int) -> None:
    machine = Machine(pages=pages)
    measured(machine, limits)
    known: dict[int, int] = {}
    for plan in machine.plans:
        for row in plan.drop:
            del known[row]
        known.update({new.row: new.prompt for new in plan.new})
        assert len(known) <= limits.max_sequences
        assert sum(step.count for step in plan.steps) <= limits.max_batch_tokens
        assert max(step.start + step.count for step in plan.steps) <= limits.max_tokens
        assert all(1 <= page <= pages for new in plan.new for page in new.pages)
        assert all(row < 0 for row in known), "no number that a request's row will have"


def test_requests_do_not_see_that_it_was_there() -> None:
    machine = Machine()
    times, left = measured(machine)
    runner: Runner = machine
    world = Driven(sequences=4, runner=runner, context=1024)
    world.scheduler.forget(left)
    pool = world.scheduler.pool
    assert (pool.used, pool.cached, world.scheduler.preemptions) == (0, 0, 0)
    assert times.known and left
    world.submit("a", prompt(200), max_tokens=5)
    world.run()
    assert world.output("a") == generate(prompt(200), 5)
    assert world.plans[0].drop == left and not set(left) & set(world.plans[-1].drop)
    assert not [row for row in machine.fake._rows if row < 0]


def test_a_step_that_fails_ends_it_and_counts_for_nothing() -> None:
    machine = Machine()
    machine.fails_at = 9
    times, left = measured(machine)
    assert not times.known and times.told is None
    assert len(machine.plans) == 9 and left


def test_own_steps_soon_outweigh_it() -> None:
    """It was taken while the machine was three times as fast: a hundred steps later hardly anything is left of that."""
    times, _ = measured(Machine(slower=1 / 3))
    work = StepWork(decodes=6, context=3000, prefill=0)
    assert times.predict(work) < 0.5 * cost(work)
    for step in range(100):
        times.observe(own := StepWork(decodes=4 + step % 5, context=2000 + 25 * step, prefill=0), cost(own))
    assert times.predict(work) == pytest.approx(cost(work), rel=0.15)


def test_a_stalled_step_among_others_hardly_counts() -> None:
    machine = Machine()
    probe = Probe(machine, LIMITS, machine.clock)
    stalled = iter([False] * 8 + [True] + [False] * 200)
    usual = Machine.collect

    def collect() -> StepResult:
        result = usual(machine)
        return StepResult(number=result.number, tokens=result.tokens, ms=result.ms + (90.0 if next(stalled) else 0.0))

    machine.collect = collect  # type: ignore[method-assign]
    found = probe.measure()
    assert all(seconds < 2 * cost(work) for work, seconds in found)
