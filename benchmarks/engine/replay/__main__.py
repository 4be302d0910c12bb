"""The simulator's engine beside the real one: the same five minutes of a trace, simulated and replayed over HTTP.

    PYTHONPATH=engine:operator python -m benchmarks.engine.replay --output DIR                  # the built-in model
    PYTHONPATH=engine:operator python -m benchmarks.engine.replay --model FOLDER --output DIR   # another

1. An engine is started on loopback, one thread, with `--record-steps`.
2. It is calibrated: requests alone give the time outside of steps, closed loops of rising concurrency the step times.
   A fifth of the steps is held out and gives the error of the fit.
3. The trace is brought to a load (a share of the time in which the engine is at work) and replayed as streaming chats.
   It is replayed in ten pieces with some of the calibration's load after each: so a machine that others use, too, is on
   the mean the same for both.
4. The simulator's engine serves the same requests with that profile. Nothing of the replay is known to the profile.

It prints medians and 95th percentiles of both and ends with 1 where any differs by more than 15 %. DIR gets
`report.md`, `results.json`, `profile.json`, the requests and the recorded steps: sizes and times, no text.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop
from benchmarks.engine.peers import servers
from benchmarks.engine.peers.client import Sample
from benchmarks.engine.replay import campaign, compare, workload
from benchmarks.engine.replay.campaign import Driver, Engine, ReplayError

from headrace.bench import calibrate, lone, packed
from headrace.bench.profile import Profile
from headrace.bench.trace import Trace
from headrace_engine.fetch.fetch import DEMO

PIECES = 10  # of the replay
PAUSE_S = 60.0  # between them, simulated: all requests have ended by then, as they have in the real replay


@dataclass(frozen=True)
class Options:
    """What is run."""

    engine: Engine
    seconds: float  # of the replay
    calibration_s: float
    load: float
    scale: workload.Scale
    output: Path


@dataclass(frozen=True)
class Outcome:
    """What came out."""

    profile: Profile
    busy: float  # share of the time, simulated
    trace: Trace
    events: float  # with text, per output token
    figures: list[compare.Figure]
    steps: tuple[list[calibrate.Step], list[calibrate.Step]]  # of the calibration, of the replay
    error_percent: float  # of the profile on the replay's steps
    drift: float  # seconds of these steps over those that the profile gives
    idle: tuple[float, float]  # load averages of the machine before and after


def main() -> int:
    """The command."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        outcome = _run(options)
    except (ReplayError, servers.ServerError, ValueError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    packed.save(outcome.trace, options.output / "replayed.npz")
    for name, recorded in zip(("calibration.jsonl", "replay.jsonl"), outcome.steps, strict=True):
        (options.output / name).write_bytes(msgspec.json.Encoder().encode_lines(recorded))
    text = _report(options, outcome)
    (options.output / "report.md").write_text(text)
    (options.output / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(_results(outcome)), indent=1))
    (options.output / "profile.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome.profile), indent=2))
    print(text)
    return 0 if all(figure.holds for figure in outcome.figures) else 1


def _run(options: Options) -> Outcome:
    """Raises ServerError, ReplayError, ValueError."""
    steps, engine = options.output / "steps.jsonl", servers.SERVERS[servers.HEADRACE]
    with tempfile.TemporaryDirectory() as folder:
        setup = servers.Setup(Path(folder), options.engine.model, options.engine.sequences)
        command = options.engine.command(steps)
        with (
            servers.running(engine, setup, options.output / "engine.log", command) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_measure(options, server.target, steps))


async def _measure(options: Options, target: Any, steps: Path) -> Outcome:
    before, slots = os.getloadavg()[0], options.engine.sequences
    driver = await Driver.of(target, steps, options.engine.model)
    pairs = workload.lengths(options.scale)
    alone = await driver.alone(options.engine.context)
    each = options.calibration_s / (PIECES + 1)
    await driver.loaded(pairs, each)
    calibration = driver.recorded()
    known = campaign.profile_of(calibration, alone, options.engine)
    whole = workload.part(workload.REPLAY_AT_S, options.seconds, options.scale)
    chosen = workload.at_load(whole, known, slots, options.load, 1)
    print(f"calibrated on {len(calibration)} steps, replaying {len(chosen)} requests", file=sys.stderr)
    traces, samples, replayed = [], list[Sample](), list[calibrate.Step]()
    for piece in workload.pieces(chosen, PIECES):
        known_steps = len(driver.recorded())
        answers = await driver.replay(piece)
        traces.append(campaign.counted(piece, answers))
        samples += answers
        replayed += driver.recorded()[known_steps:]
        known_steps = len(driver.recorded())
        await driver.loaded(pairs, each)
        calibration += driver.recorded()[known_steps:]
    profile = campaign.profile_of(calibration, alone, options.engine)
    trace = workload.in_turn(traces, PAUSE_S)
    real, simulated = campaign.seen(samples), lone.serve(trace, profile, slots)
    return Outcome(
        profile,
        simulated.busy_s / options.seconds,
        trace,
        (len(real.gaps) + len(real.ttft)) / float(trace.output.sum()),
        compare.figures(real, simulated),
        (calibration, replayed),
        calibrate.error_percent(replayed, profile),
        calibrate.drift(replayed, profile),
        (before, os.getloadavg()[0]),
    )


def _results(outcome: Outcome) -> dict[str, Any]:
    return {
        "requests": len(outcome.trace),
        "busyShare": round(outcome.busy, 3),
        "eventsPerToken": round(outcome.events, 4),
        "calibrationSteps": len(outcome.steps[0]),
        "replaySteps": len(outcome.steps[1]),
        "heldOutErrorPercent": outcome.profile.residual_percent,
        "replayErrorPercent": round(outcome.error_percent, 1),
        "drift": round(outcome.drift, 3),
        "loadAverages": outcome.idle,
        "figures": [
            {"name": f.name, "realSeconds": f.real, "simulatedSeconds": f.simulated, "ratio": round(f.ratio, 4)}
            for f in outcome.figures
        ],
        "profile": msgspec.to_builtins(outcome.profile),
    }


HEAD = """# The simulator's engine beside the real one

`{model}`, {threads} thread(s), {sequences} sequences, {batch} tokens a step. {requests} requests in {seconds:.0f} s
({trace}, lengths / {divisor:g}, median {prompt} + {output} tokens), which keep the simulated engine at work for
{busy:.0%} of the time. Events with text per token: {events:.3f}.
Profile: fitted to {fitted} steps of another load, mean error {held:.1f} % on held-out ones, {error:.1f} % on the
replay's {replayed}; outside of steps a request takes {constant:.2f} ms and {token:.2f} us a prompt token; prompts
let steps last {stretch:.2f} times what the streams beside them take; nine steps of ten take {low:.2f} to {high:.2f}
of the fit.
The machine's load average was {before:.1f} before and {after:.1f} after; the replay's steps took {drift:.2f} of what
the profile gives them (far from 1: others changed the machine's speed between calibration and replay).

{table}
"""


def _report(options: Options, outcome: Outcome) -> str:
    engine, profile, trace = options.engine, outcome.profile, outcome.trace
    return HEAD.format(
        model="builtin://demo" if engine.model == DEMO else engine.model.name,
        threads=engine.threads,
        sequences=engine.sequences,
        batch=engine.batch_tokens,
        requests=len(trace),
        seconds=options.seconds,
        trace=workload.TRACE,
        divisor=options.scale.divisor,
        prompt=int(np.median(trace.prompt)),
        output=int(np.median(trace.output)),
        events=outcome.events,
        busy=outcome.busy,
        fitted=len(outcome.steps[0]),
        held=profile.residual_percent,
        error=outcome.error_percent,
        replayed=len(outcome.steps[1]),
        constant=1e3 * profile.request_seconds,
        token=1e6 * profile.request_token_seconds,
        stretch=profile.prefill_stretch,
        low=profile.scatter[round(0.05 * (len(profile.scatter) - 1))],
        high=profile.scatter[round(0.95 * (len(profile.scatter) - 1))],
        drift=outcome.drift,
        before=outcome.idle[0],
        after=outcome.idle[1],
        table=compare.table(outcome.figures),
    )


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, default=DEMO, metavar="FOLDER", help="default: the built-in model")
    add("--threads", type=int, default=1, help="of the engine, default %(default)s")
    add("--seconds", type=float, default=300.0, help="of the replay, default %(default)s")
    add("--calibration-seconds", type=float, default=60.0, help="of the load before it, default %(default)s")
    add("--load", type=float, default=0.65, help="share of the time at work, default %(default)s")
    add("--divisor", type=float, default=4.0, help="of the recorded lengths, default %(default)s")
    add("--output", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    engine = Engine(given.model, given.threads)
    scale = workload.Scale(given.divisor, engine.context)
    return Options(engine, given.seconds, given.calibration_seconds, given.load, scale, given.output)


if __name__ == "__main__":
    sys.exit(main())
