"""The replay beside the simulator: the slice of the trace, its load, and the comparison, without any engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.engine.peers.client import Sample
from benchmarks.engine.replay import campaign, compare, workload
from benchmarks.engine.replay.campaign import Alone, Engine
from benchmarks.engine.replay.compare import Figure, Seen
from benchmarks.engine.replay.workload import Scale

from headrace.bench import calibrate, lone
from headrace.bench.calibrate import Step
from headrace.bench.lone import Tokens
from headrace.bench.profile import Profile

PROFILE = Profile(
    name="some",
    step_seconds=0.005,
    per_sequence_seconds=0.0005,
    per_kv_token_seconds=1e-7,
    per_prefill_token_seconds=2e-4,
    kv_tokens=1 << 20,
    max_sequences=16,
    max_batch_tokens=512,
)


def test_a_slice_is_scaled_and_fits_the_context() -> None:
    scale = Scale(divisor=4.0, context=512)
    part, whole = workload.part(600.0, 300.0, scale), workload.part(600.0, 300.0, Scale(1.0, 1 << 20))
    assert part.duration_s == 300.0 and 0 <= part.arrival_s.min() <= part.arrival_s.max() < 300.0
    assert len(part) == len(whole) > 1000
    assert (part.prompt + part.output <= 512).all() and part.output.min() >= workload.LEAST_OUTPUT
    assert float(np.median(part.output)) == pytest.approx(float(np.median(whole.output)) / 4, abs=1)


def test_the_calibration_has_requests_of_its_own() -> None:
    assert workload.REPLAY_AT_S + 300 <= workload.CALIBRATION_AT_S


@pytest.mark.parametrize("load", [0.1, 0.3, 0.65])
def test_a_trace_is_brought_to_a_load(load: float) -> None:
    trace = workload.at_load(workload.part(600.0, 60.0, Scale()), PROFILE, 16, load, 1)
    assert lone.busy_share(trace, PROFILE, 16) == pytest.approx(load, rel=0.05)
    assert (np.diff(trace.arrival_s) >= 0).all()


def test_pieces_are_the_trace_again_with_pauses_between() -> None:
    trace = workload.part(600.0, 60.0, Scale())
    parts = workload.pieces(trace, 4)
    assert [part.duration_s for part in parts] == [15.0] * 4 and sum(len(part) for part in parts) == len(trace)
    assert all((part.arrival_s >= 0).all() and (part.arrival_s < 15.0).all() for part in parts)
    again = workload.in_turn(parts, 100.0)
    assert again.duration_s == 4 * 115.0
    assert again.prompt.tolist() == trace.prompt.tolist() and again.output.tolist() == trace.output.tolist()
    shifted = trace.arrival_s + 100.0 * (trace.arrival_s // 15.0)
    assert again.arrival_s == pytest.approx(shifted)


def test_the_calibration_never_runs_out_of_lengths() -> None:
    pairs = workload.lengths(Scale())
    first = next(pairs)
    assert sum(next(pairs) == first for _ in range(20_000)) >= 1 and min(first) > 0


def test_figures_are_those_of_both_sides() -> None:
    real = Seen(np.array([0.1, 0.2, 0.3]), np.array([0.01] * 19 + [0.1]))
    simulated = Tokens(np.array([0.1, 0.22, 0.3]), np.array([0.01] * 20), 1.0, 1.0, 20)
    found = {one.name: one for one in compare.figures(real, simulated)}
    assert found["TTFT p50"].ratio == pytest.approx(1.1) and found["TTFT p50"].holds
    assert found["ITL p50"].holds and not found["ITL p95"].holds
    text = compare.table(list(found.values()))
    assert "| TTFT p50 | 200.0 | 220.0 | 1.100 | yes |" in text and text.endswith("| no |")


@pytest.mark.parametrize(("simulated", "holds"), [(0.86, True), (0.84, False), (1.14, True), (1.16, False)])
def test_fifteen_percent_are_allowed(simulated: float, holds: bool) -> None:
    assert Figure("x", 1.0, simulated).holds is holds
    assert not Figure("x", 0.0, simulated).holds


def test_what_the_engine_counted_is_what_is_simulated() -> None:
    trace = workload.part(600.0, 1.0, Scale())
    samples = [Sample(sent=1.0, times=[1.5, 1.75], prompt_tokens=7 + i, output_tokens=2) for i in range(len(trace))]
    counted, seen = campaign.counted(trace, samples), campaign.seen(samples)
    assert counted.prompt.tolist() == [7 + i for i in range(len(trace))] and set(counted.output.tolist()) == {2}
    assert counted.arrival_s is trace.arrival_s
    assert set(seen.ttft.tolist()) == {0.5} and seen.gaps.tolist() == [0.25] * len(trace)


def test_a_profile_is_made_of_the_calibration_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    steps = [
        Step(
            seconds=0.004,
            between=0.001 + 5e-4 * n + 2e-4 * p,
            sequences=n,
            kv_tokens=100 * n,
            prefill=((p, 0),) if p else (),
        )
        for n, p in zip(random.integers(0, 16, 200).tolist(), random.choice([0, 100, 400], 200).tolist(), strict=True)
    ]
    alone = [
        Alone(p, 0.003 + 1e-6 * p + steps[i].seconds + (steps[i].between or 0.0), range(i, i + 1))
        for i, p in enumerate((100, 400, 900))
    ]
    profile = campaign.profile_of(steps, alone, Engine(tmp_path))
    assert profile.step_seconds == pytest.approx(0.005, rel=0.05)
    assert profile.per_prefill_token_seconds == pytest.approx(2e-4, rel=0.05)
    assert (profile.request_seconds, profile.prefill_stretch) == (pytest.approx(0.003), 0.0)
    assert profile.residual_percent < 1
    assert len(profile.scatter) == calibrate.SHARES and profile.scatter[25] == pytest.approx(1.0, abs=0.05)


def test_words_are_single_tokens_and_differ_by_seed() -> None:
    words = workload.vocabulary(["Ġhello", "Ġworld", "ĠUPPER", "plain", "Ġa", "Ġ12", "Ġnaïve"])
    assert words == ["hello", "world"]
    assert workload.words(words, "a", 50) == workload.words(words, "a", 50) != workload.words(words, "b", 50)
    assert workload.words(words, "a", 0).count(" ") == 1


def test_the_engine_records_its_steps(tmp_path: Path) -> None:
    command = Engine(tmp_path, threads=1).command(tmp_path)
    assert command[command.index("--threads") + 1] == "1" and "--record-steps" in command and "PORT" in command
