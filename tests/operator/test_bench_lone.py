"""One engine without a gateway: its tokens are those of the formula, and prompts leave streams their share."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench import calibrate, lone
from headrace.bench.calibrate import Step
from headrace.bench.profile import Profile
from headrace.bench.replica import LEAST_PREFILL
from headrace.bench.trace import Trace

PLAIN = Profile(
    name="plain",
    step_seconds=0.01,
    per_sequence_seconds=0.001,
    per_kv_token_seconds=0.0,
    per_prefill_token_seconds=1e-4,
    kv_tokens=100_000,
    max_sequences=8,
    max_batch_tokens=512,
)
PACED = msgspec.structs.replace(PLAIN, prefill_stretch=3.0)


def _trace(*requests: tuple[float, int, int]) -> Trace:
    at, prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    return Trace("some", at.astype(np.float64), prompt, output, 10.0)


def test_tokens_come_at_the_ends_of_steps() -> None:
    found = lone.serve(_trace((0.5, 300, 4)), PLAIN, 8)
    assert found.ttft.tolist() == pytest.approx([0.01 + 0.03])
    assert found.gaps.tolist() == pytest.approx([0.011] * 3)
    assert (found.steps, found.end_s) == (4, pytest.approx(0.5 + 0.04 + 0.033))
    assert found.busy_s == pytest.approx(0.073)


def test_a_request_takes_its_time_outside_of_steps() -> None:
    slow = msgspec.structs.replace(PLAIN, request_seconds=0.2, request_token_seconds=1e-3)
    found = lone.serve(_trace((0.5, 300, 1)), slow, 8)
    assert found.ttft.tolist() == pytest.approx([0.2 + 0.3 + 0.04])
    assert found.gaps.tolist() == []


@pytest.mark.parametrize(
    ("profile", "pieces"),
    [(PLAIN, [511, 489]), (PACED, [220, 220, 220, 220, 120])],
    ids=["all of the budget", "three times the streams' own"],
)
def test_prompts_beside_streams_are_cut(profile: Profile, pieces: list[int]) -> None:
    """A stream alone takes 11 ms a step: with a stretch of three, prompts may add 22 ms, which is 220 tokens."""
    found = lone.serve(_trace((0.0, 10, 50), (0.1, 1000, 1)), profile, 8)
    longer = [gap for gap in found.gaps.tolist() if gap > 0.0111]
    assert longer == pytest.approx([0.011 + 1e-4 * piece for piece in pieces])


def test_prompts_never_starve_beside_streams() -> None:
    dear = msgspec.structs.replace(PACED, per_prefill_token_seconds=0.01)
    found = lone.serve(_trace((0.0, 10, 50), (0.3, 2 * LEAST_PREFILL, 1)), dear, 8)
    assert sorted(found.gaps.tolist())[-2:] == pytest.approx([0.011 + 0.01 * LEAST_PREFILL] * 2)


def test_beyond_the_slots_requests_wait_in_order() -> None:
    found = lone.serve(_trace((0.0, 10, 20), (0.001, 10, 20), (0.002, 10, 20)), PLAIN, 1)
    alone = 0.01 + 1e-3 + 19 * 0.011
    assert found.ttft.tolist() == pytest.approx([0.011, 0.011 + alone - 0.001, 0.011 + 2 * alone - 0.002])
    assert found.busy_s == pytest.approx(found.end_s) == pytest.approx(3 * alone)


def test_a_pool_too_small_is_refused() -> None:
    tiny = msgspec.structs.replace(PLAIN, kv_tokens=300)
    with pytest.raises(ValueError, match="pool of 300 tokens is too small"):
        lone.serve(_trace(*((0.0, 100, 100) for _ in range(3))), tiny, 8)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_every_token_comes_once_whatever_the_pace(requests: list[tuple[float, int, int]]) -> None:
    trace = _trace(*sorted(requests))
    for profile in (PLAIN, PACED):
        found = lone.serve(trace, profile, 4)
        assert len(found.ttft) == len(trace) and (found.ttft > 0).all()
        assert len(found.gaps) == int(trace.output.sum()) - len(trace)
        assert (found.gaps >= PLAIN.step_seconds).all()


def test_the_engine_is_at_work_for_a_share_of_the_time() -> None:
    trace = _trace(*((float(i), 100, 10) for i in range(8)))
    assert lone.busy_share(trace, PLAIN, 8) == pytest.approx(8 * (0.02 + 9 * 0.011) / 10)
    behind = _trace(*((0.0, 500, 200) for _ in range(20)))
    assert lone.busy_share(behind, PLAIN, 1) > 1.0


def test_what_lies_between_steps_is_part_of_them() -> None:
    steps = [Step(seconds=0.01, between=b, sequences=1) for b in (0.001, 0.002, 0.003)] + [Step(seconds=0.01)]
    assert [step.seconds for step in calibrate.whole(steps)] == pytest.approx([0.011, 0.012, 0.013, 0.012])
    assert calibrate.whole([Step(seconds=0.01)])[0].seconds == 0.01


def test_the_fit_meets_the_mean_of_scattered_times() -> None:
    """Weights by the inverse of the measured time would lie below it."""
    random = np.random.default_rng(1)
    steps = [Step(seconds=0.01 * random.gamma(6.0, 1 / 6.0), sequences=int(n)) for n in random.integers(0, 9, 4000)]
    fit = calibrate.fit(steps)
    mean = fit.coefficients[0] + fit.coefficients[1] * float(np.mean([s.sequences for s in steps]))
    assert mean == pytest.approx(0.01, rel=0.03)


def test_the_time_outside_of_steps_is_a_constant_and_a_part_of_each_token() -> None:
    prompts = [30, 100, 400, 1200] * 3
    constant, token = calibrate.overhead(prompts, [0.004 + 5e-6 * p for p in prompts])
    assert (constant, token) == (pytest.approx(0.004), pytest.approx(5e-6))
    assert calibrate.overhead([10, 1000], [0.005, 0.002])[1] == 0.0  # no negative time
    with pytest.raises(ValueError, match="no requests"):
        calibrate.overhead([], [])


def test_the_stretch_is_what_steps_show_whose_prompt_goes_on() -> None:
    def step(sequences: int, *pieces: tuple[int, int]) -> Step:
        return Step(seconds=1.0, sequences=sequences, prefill=pieces)

    going = [step(1, (220, 0)), step(1, (220, 220)), step(1, (100, 440)), step(1)]
    assert calibrate.stretch(going, PLAIN) == pytest.approx(3.0)  # 11 ms and 22 ms of prompts; the last piece is a rest
    for other in (
        [step(0, (220, 0)), step(0, (220, 220))],  # without streams
        [step(1, (511, 0)), step(1, (100, 511))],  # the batch is full
        [step(1, (32, 0)), step(1, (32, 32))],  # the least there is
        [step(1, (220, 0)), step(1, (220, 0))],  # another prompt
    ):
        assert calibrate.stretch(other, PLAIN) == 0.0


def test_the_scatter_is_that_of_the_steps_about_the_fit() -> None:
    steps = [Step(seconds=0.011 * r, sequences=1) for r in [*np.linspace(0.5, 1.5, 999).tolist(), 30.0]]
    found = calibrate.scatter(steps, PLAIN)
    assert (found[0], found[25]) == (pytest.approx(0.51, abs=0.01), pytest.approx(1.01, abs=0.01))
    assert list(found) == sorted(found) and len(found) == calibrate.SHARES
    mean = float(np.mean([s.seconds for s in steps])) / 0.011  # rare long steps count in full
    assert float(np.mean(found)) == pytest.approx(mean, rel=1e-3)


def test_scattered_steps_have_that_scatter_and_the_same_tokens() -> None:
    trace = _trace(*((float(i), 200, 200) for i in range(10)))
    scattered = msgspec.structs.replace(PACED, scatter=tuple(np.linspace(0.5, 1.5, 41).tolist()))
    exact, found = lone.serve(trace, PACED, 8), lone.serve(trace, scattered, 8)
    assert len(found.gaps) == len(exact.gaps)
    assert float(found.gaps.mean()) == pytest.approx(float(exact.gaps.mean()), rel=0.1)
    alone = lone.serve(_trace((0.0, 10, 4000)), scattered, 8).gaps / 0.011
    assert np.quantile(alone, [0.05, 0.5, 0.95]) == pytest.approx([0.55, 1.0, 1.45], abs=0.03)
    assert lone.serve(trace, scattered, 8).gaps.tolist() == found.gaps.tolist()
    assert lone.serve(trace, scattered, 8, seed=2).gaps.tolist() != found.gaps.tolist()


def test_the_error_on_other_steps_is_told() -> None:
    steps = [Step(seconds=0.022, sequences=1), Step(seconds=0.011 * 0.9, sequences=1)]
    assert calibrate.error_percent(steps, PLAIN) == pytest.approx((50 + 100 / 9) / 2)
    assert calibrate.drift(steps, PLAIN) == pytest.approx((2 + 0.9) / 2)
