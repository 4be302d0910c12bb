"""What a replica takes by its engine's step times: the arithmetic, what cannot be, and what decisions make of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.profile import Capacity as BenchCapacity
from headrace.bench.profile import Mix as BenchMix
from headrace.bench.profile import Profile, load
from headrace.scaling import Decision, Memory, Reason
from headrace.scaling.capacity import Block, Capacity, anchored
from headrace.scaling.measured import LEAST_ANSWERED, by_step_times
from headrace.scaling.profile import Answers, Limits, mix_of, steady
from headrace.scaling.record import Recorder, replay
from headrace.scaling.types import ClassPolicy, EngineSample
from headrace.testing.scaling_world import INTERACTIVE, KEY, Gauge, World, policy, ready
from headrace_wire.protocol import PAGE_TOKENS, StepTimes

TIMES = StepTimes(fixed_s=0.01, sequence_s=0.001, context_token_s=1e-6, prefill_token_s=1e-4, steps=50)
SLOW = msgspec.structs.replace(TIMES, fixed_s=0.02)
# A request of 100 + 51 tokens. Work: 100 x 1e-4 + 51 x (0.001 + 125.5e-6) = 0.0674 s; a step of 10 ms, TPOT 100 ms:
# rho = 1 - 10 / 90; with four slots, Little's law leaves 4 w / (4 w + 51 x 0.01 + 0.01) = 0.3415, so 5.07 requests/s.
ANSWERS = Answers(40.0, 4000.0, 0.0, 2040.0, 0.0)
FOUR_SLOTS, MANY_SLOTS = 5.067, 13.19


def engine(times: StepTimes | None = TIMES, pages: int = 1000, pod: str = "p") -> EngineSample:
    return EngineSample(
        pod=pod, age_s=0.1, running=0, waiting=0, total_pages=pages, page_tokens=PAGE_TOKENS, step_times=times
    )


# ---- the arithmetic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "pages", "tpot", "rate"),
    [
        pytest.param(4, 1000, 0.1, FOUR_SLOTS, id="slots bind"),
        pytest.param(500, 1000, 0.1, MANY_SLOTS, id="the time between tokens binds"),
        pytest.param(500, 1000, 0.05, (1 - 10 / 45) / 0.0674, id="a stricter one"),
        pytest.param(500, 8, 0.1, 5.15, id="the pool binds: 512 tokens, 125.5 each"),
    ],
)
def test_what_a_replica_takes(slots: int, pages: int, tpot: float, rate: float) -> None:
    found = by_step_times([engine(pages=pages)], ANSWERS, slots, tpot)
    assert found.per_second == pytest.approx(rate, rel=0.01) and not found.learned
    assert "step times, 100 + 51 tokens each" in found.detail and f"{1000 * tpot:g} ms" in found.detail


def test_tokens_that_were_cached_take_no_work() -> None:
    half = msgspec.structs.replace(ANSWERS, cached=2000.0)
    assert mix_of(ANSWERS, TIMES).prefill_s == pytest.approx(0.01)
    assert mix_of(half, TIMES).prefill_s == pytest.approx(0.005)


@given(
    st.floats(1e-3, 0.03), st.floats(0, 1e-3), st.floats(0, 1e-5), st.floats(1e-6, 1e-3), st.floats(0, 1e-8),
    st.integers(1, 300), st.integers(64, 10**6), st.floats(0.04, 1.0),
    st.lists(st.tuples(st.integers(1, 4000), st.integers(2, 500)), min_size=1, max_size=20),
)  # fmt: skip
def test_the_simulator_s_profiles_mean_the_same(
    step: float, row: float, kv: float, token: float, pair: float,
    slots: int, pool: int, tpot: float, sizes: list[tuple[int, int]],
) -> None:  # fmt: skip
    """What a simulated engine reports of itself gives what the simulator holds to be its capacity."""
    import numpy as np

    made = Profile(
        name="x", step_seconds=step, per_sequence_seconds=row, per_kv_token_seconds=kv, per_prefill_token_seconds=token,
        per_prefill_pair_seconds=pair, kv_tokens=pool, page_tokens=1, max_sequences=slots, max_batch_tokens=512,
    )  # fmt: skip
    prompts, outputs = (np.array([size[i] for size in sizes]) for i in range(2))
    answers = Answers(
        float(len(sizes)),
        float(prompts.sum()),
        0.0,
        float(outputs.sum()),
        float((prompts.astype(float) ** 2).sum() / 2),
    )
    mean = mix_of(answers, made.step_times)
    mix = BenchMix(mean.prompt, mean.output, mean.work_s, mean.prefill_s, 0.0)
    bench = BenchCapacity.of(made, mix, tpot)
    full = steady(step, mean, Limits(slots, pool, tpot))
    assert (bench.rho, bench.step_s) == (full.rho, full.step_s)
    assert mean.prefill_s == pytest.approx(float(made.prefill_s(prompts).mean()))
    exact = float(made.work_s(prompts, outputs).mean())
    spread = np.cov(prompts, outputs, bias=True)  # that means leave out: long prompts with long answers
    assert mean.work_s + kv * float(spread[0, 1] + spread[1, 1] / 2) == pytest.approx(exact)
    assert 0 < full.rho < 1 and full.in_flight <= slots + 1e-6


def test_the_mix_forgets() -> None:
    mix = Answers().after([Answers(100, 1e5, 0, 1000, 0)], 1.0)
    assert (mix.prompt / mix.requests, mix.after([], 3600.0)) == (1000, mix), "quiet makes nothing forgotten"
    for _ in range(1200):
        mix = mix.after([Answers(25, 25 * 200, 0, 500, 0), Answers()], 1.0)
    assert mix.prompt / mix.requests == pytest.approx(200, rel=0.05)


# ---- what cannot be -------------------------------------------------------------------------------------------------

PARTS = ("fixed_s", "sequence_s", "context_token_s", "prefill_token_s", "attended_token_s")
ODD = {"NaN": math.nan, "negative": -0.01, "huge": 1e300, "infinite": math.inf}
ALL_ZERO = StepTimes(steps=9)
UNKNOWN: dict[str, tuple[list[EngineSample], Answers, int, float | None]] = {
    **{
        f"{part} {name}": ([engine(msgspec.structs.replace(TIMES, **{part: value}))], ANSWERS, 4, 0.1)
        for part in PARTS
        for name, value in ODD.items()
    },
    "no engine": ([], ANSWERS, 4, 0.1),
    "an engine of before": ([engine(None)], ANSWERS, 4, 0.1),
    "all zero": ([engine(ALL_ZERO)], ANSWERS, 4, 0.1),
    "no fixed part": ([engine(msgspec.structs.replace(TIMES, fixed_s=0.0))], ANSWERS, 4, 0.1),
    "no pool": ([engine(pages=0)], ANSWERS, 4, 0.1),
    "no slots": ([engine()], ANSWERS, 0, 0.1),
    "no target": ([engine()], ANSWERS, 4, None),
    "a target of zero": ([engine()], ANSWERS, 4, 0.0),
    "NaN as target": ([engine()], ANSWERS, 4, math.nan),
    "a step is too slow for the target": ([engine()], ANSWERS, 4, 0.011),
    "few answers": ([engine()], Answers(LEAST_ANSWERED - 1, 1000.0, 0.0, 1000.0), 4, 0.1),
    "a gateway of before": ([engine()], Answers(), 4, 0.1),
    "no output": ([engine()], Answers(40.0, 4000.0, 0.0, 0.0), 4, 0.1),
    "out of this world": ([engine(StepTimes(fixed_s=1e-9, sequence_s=1e-12, steps=9))], ANSWERS, 9999, 0.1),
}


@pytest.mark.parametrize("case", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_cannot_be_is_unknown_and_says_why(case: tuple[list[EngineSample], Answers, int, float | None]) -> None:
    found = by_step_times(*case)
    assert found.per_second is None and (found.detail or case[0] in ([], [engine(None)]))


@pytest.mark.parametrize(
    ("times", "rate"),
    [
        pytest.param([TIMES, SLOW], "slow", id="of two, the slower"),
        pytest.param([TIMES, TIMES, SLOW], "fast", id="of three, the middle one"),
        pytest.param(
            [msgspec.structs.replace(TIMES, fixed_s=math.nan), TIMES, None], "fast", id="only those that can be"
        ),
    ],
)
def test_several_engines(times: list[StepTimes | None], rate: str) -> None:
    found = by_step_times([engine(t, pod=f"p{i}") for i, t in enumerate(times)], ANSWERS, 4, 0.1)
    alone = by_step_times([engine(SLOW if rate == "slow" else TIMES)], ANSWERS, 4, 0.1)
    assert found.per_second == alone.per_second is not None
    assert ("median of" in found.detail) is (len([t for t in times if t in (TIMES, SLOW)]) > 1)


# ---- what service says against it -----------------------------------------------------------------------------------


def block(rate: float, flying: float, waited: bool = False) -> Block:
    """Half a minute of one replica."""
    n = 30.0 * rate
    return Block(
        0.0, 30.0, 30.0 * flying, n, 30.0 if waited else 0.0, 30.0, *((30.0, 30.0 * flying, n) if waited else ())
    )


def test_service_corrects_step_times_before_it_can_replace_them() -> None:
    told, unknown = Capacity(5.0, "5 requests/s by step times", False), Capacity(None, "too few")

    def rate(blocks: list[Block], service: Capacity = unknown) -> float:
        found = anchored(told, blocks, service)
        assert found.per_second is not None and found.learned is (service.per_second is not None)
        return found.per_second

    assert rate([]) == rate([block(2.0, 1.0)]) == 5.0
    assert rate([block(7.0, 3.0)]) == pytest.approx(7.0), "so much it has served"
    assert 2.2 < rate([block(2.0, 4.0, waited=True)] * 20) < 2.9, "it took no more for ten minutes of waiting"
    assert rate([], Capacity(2.0, "learned")) == 3.0, "never more than half as much again as service says"
    assert rate([], Capacity(9.0, "learned")) == 6.0, "nor much less"
    assert anchored(Capacity(None, "no times"), [], unknown) == Capacity(None, "too few; no times")
    assert anchored(Capacity(None, "no times"), [], Capacity(2.0, "learned")) == Capacity(2.0, "learned")


# ---- decisions ------------------------------------------------------------------------------------------------------

PACED: ClassPolicy = msgspec.structs.replace(INTERACTIVE, tpot_s=0.1)


class Served:
    """A world in which so many requests a second of 100 + 51 tokens are answered."""

    def __init__(self, engines: int = 1, times: StepTimes | None = TIMES, **more: Any):
        self.world = World(policy(min_replicas=1, classes=(PACED,), **more), engines=engines)
        self.world.engine = {"total": 1000, "free": 1000, "step_times": times}
        self.world.last_request = 0.1
        self.count = 0

    def run(self, seconds: int, rate: int, in_flight: int = 2) -> Served:
        for _ in range(seconds):
            self.count += rate
            self.world.now += 1
            self.world.see(self.gauge(in_flight))
        return self

    def gauge(self, in_flight: int) -> Gauge:
        n = self.count
        return Gauge(
            in_flight=in_flight, good=n, offered=n, admitted=n,
            answered=n, prompt_tokens=100 * n, output_tokens=51 * n,
        )  # fmt: skip


def forecast(d: Decision) -> tuple[int | None, str]:
    return next((c.replicas, c.detail) for c in d.candidates if c.name == "forecast")


def test_a_replica_s_capacity_is_known_after_a_few_answers() -> None:
    served = Served().run(2, 9)
    assert forecast(served.world.decide(ready(1)))[0] is None
    served.run(10, 9)
    d = served.world.decide(ready(1))
    wanted, detail = forecast(d)
    assert d.replicas == wanted == 2 and d.reason is Reason.FORECAST, "9 x 0.85 over 5.07"
    assert "5.07 requests/s by the engine's step times, 100 + 51 tokens each, TPOT 100 ms" in detail
    assert "requests were seen to learn from" in detail
    assert d.inputs["capacityPerReplica"] == pytest.approx(FOUR_SLOTS, rel=0.01)
    assert d.inputs["capacityFrom"] == "step times"


def test_an_engine_of_before_leaves_the_slots_to_decide() -> None:
    d = Served(times=None).run(12, 9).world.decide(ready(1))
    assert forecast(d) == (None, "not known what a replica takes: 0 of 200 requests were seen to learn from")
    assert "capacityFrom" not in d.inputs


def test_what_is_learned_takes_part() -> None:
    """Four slots in use and 8 requests/s begun: so much a replica takes, whatever the step times say."""
    served = Served().run(100, 8, in_flight=4)
    d = served.world.decide(ready(1))
    assert d.inputs["capacityFrom"] == "step times and service"
    assert d.inputs["capacityPerReplica"] == pytest.approx(8.0, rel=0.05)
    assert "8 with what was served; by service alone 8" in forecast(d)[1]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", [*ODD.values(), 0.0], ids=[*ODD, "zero"])
def test_no_lie_of_an_engine_scales_down_what_is_needed(part: str, value: float) -> None:
    """Three replicas under 13 requests/s need three, whatever one's step times become."""
    served = Served(engines=3).run(40, 13, in_flight=10)
    served.world.engine["step_times"] = msgspec.structs.replace(TIMES, **{part: value})
    memory = Memory()
    for _ in range(120):
        served.run(1, 13, in_flight=10)
        d = served.world.decide(ready(3), memory)
        memory = d.memory
        assert d.replicas == 3, d.message


@pytest.mark.parametrize("factor", [1e-3, 0.1, 0.5])
def test_step_times_that_promise_too_much_cost_no_replica_before_service_has_told(factor: float) -> None:
    """The slots have to agree to a step down as long as nothing was learned: here, at least ten are in use."""
    quick = StepTimes(**{name: getattr(TIMES, name) * factor for name in PARTS}, steps=99)
    served = Served(engines=3, times=quick)
    memory = Memory()
    for _ in range(120):
        served.run(1, 1, in_flight=9)
        d = served.world.decide(ready(3), memory)
        memory = d.memory
        assert d.inputs.get("capacityFrom") == "step times" or served.count <= LEAST_ANSWERED + 1
        assert d.replicas == 3, d.message


def test_step_times_that_promise_too_little_are_overruled_by_what_was_served() -> None:
    lame = StepTimes(**{name: getattr(TIMES, name) * 8 for name in PARTS}, steps=99)
    served = Served(times=lame).run(120, 2, in_flight=1)
    d = served.world.decide(ready(1))
    assert d.inputs["capacityFrom"] == "step times"
    assert d.inputs["capacityPerReplica"] == pytest.approx(2.0, rel=0.05) and d.replicas == 1


def test_a_slow_class_s_target_counts_only_while_it_alone_is_asked_for() -> None:
    loose = msgspec.structs.replace(PACED, name="batch", tpot_s=0.2, priority=0)
    served = Served(max_sequences=100)
    served.world.policy = policy(min_replicas=1, max_sequences=100, classes=(PACED, loose))
    strict = served.run(10, 9).world.decide(ready(1))
    for n in range(1, 320):
        served.world.now += 1
        batch = Gauge(
            good=9 * n, offered=9 * n, admitted=9 * n, answered=9 * n, prompt_tokens=900 * n, output_tokens=459 * n
        )
        served.world.see(served.gauge(0), batch)
    alone = served.world.decide(ready(1))
    assert "TPOT 100 ms" in forecast(strict)[1] and "TPOT 200 ms" in forecast(alone)[1]


# ---- recordings -----------------------------------------------------------------------------------------------------


def recorded(served: Served) -> list[str]:
    lines: list[str] = []
    recorder, world, memory = Recorder(lines.append), served.world, Memory()
    recorder.window(KEY, world.policy, world.window)
    for second in range(60):
        served.run(1, 9 if second > 20 else 3, in_flight=3)
        latest = world.window.latest
        assert latest is not None
        recorder.sample(KEY, latest)
        d = world.decide(ready(2), memory)
        recorder.decision(KEY, world.policy, ready(2), memory, d)
        memory = d.memory
    return lines


def test_decisions_by_step_times_replay() -> None:
    lines = recorded(Served(engines=2))
    found = replay(lines)
    assert (found.decisions, found.differences) == (60, ())
    assert any('"capacityFrom":"step times"' in line for line in lines)


def test_a_recording_begun_later_replays_too() -> None:
    found = replay(recorded(Served(engines=2).run(30, 9, in_flight=3)))
    assert (found.decisions, found.differences) == (60, ())


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    return [_without(item, names) for item in value] if isinstance(value, list) else value


def test_a_recording_of_before_step_times_replays() -> None:
    """Made by an operator that knew nothing of them: the same decisions, from lines without the fields."""
    new = frozenset(
        ("step_times", "page_tokens", "tpot_s", "answers", "answered", "prompt_tokens", "cached_tokens",
         "output_tokens", "attended_kilotokens")
    )  # fmt: skip
    lines = recorded(Served(times=None))
    old = [msgspec.json.encode(_without(msgspec.json.decode(line), new)).decode() for line in lines]
    assert old != lines
    found = replay(old)
    assert (found.decisions, found.differences) == (60, ())


def test_the_simulator_s_profiles_can_be() -> None:
    for name in ("h100-8b", "cpu-demo"):
        profile = load(name)
        made = engine(profile.step_times, pages=profile.kv_tokens // PAGE_TOKENS)
        assert by_step_times([made], ANSWERS, profile.max_sequences, 0.2).per_second is not None
