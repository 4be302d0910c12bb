"""The simulator's engine beside the real one: the same five minutes of a trace, simulated and replayed over HTTP.

    PYTHONPATH=engine:operator python -m benchmarks.engine.replay --output DIR                  # the built-in model
    PYTHONPATH=engine:operator python -m benchmarks.engine.replay --model FOLDER --output DIR   # another

1. An engine is started on loopback, one thread, with `--record-steps`.
2. It is calibrated: requests alone give the time outside of steps, closed loops of rising concurrency the step times.
   A fifth of the steps is held out and gives the error of the fit. Half of this load comes after the replay, so that a
   machine that others use too is on the mean the same in both.
3. The trace is brought to a load (a share of the time in which the engine is at work) and replayed as streaming chats.
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
from benchmarks.engine.replay import campaign, compare, workload
from benchmarks.engine.replay.campaign import Driver, Engine, ReplayError

from headrace.bench import calibrate, lone, packed
from headrace.bench.profile import Profile
from headrace.bench.trace import Trace
from headrace_engine.fetch.fetch import DEMO


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
    steps: tuple[int, int, int]  # of the calibration, of the replay, recorded before the replay
    error_percent: float  # of the profile on the replay's steps
    idle: tuple[float, float]  # load averages of the machine before and after


def main() -> int:
    """The command."""
    options = _options()
    options.output.mkdir(parents=True, exist_ok=True)
    steps = options.output / "steps.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        setup = servers.Setup(Path(folder), options.engine.model, options.engine.sequences)
        command = options.engine.command(steps)
        with servers.running(
            servers.SERVERS[servers.HEADRACE], setup, options.output / "engine.log", command
        ) as server:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    outcome = runner.run(_measure(options, server.target, steps))
            except (ReplayError, ValueError) as error:
                print(f"replay: {error}", file=sys.stderr)
                return 2
    packed.save(outcome.trace, options.output / "replayed.npz")
    text = _report(options, outcome)
    (options.output / "report.md").write_text(text)
    (options.output / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(_results(outcome)), indent=1))
    (options.output / "profile.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome.profile), indent=2))
    print(text)
    return 0 if all(figure.holds for figure in outcome.figures) else 1


async def _measure(options: Options, target: Any, steps: Path) -> Outcome:
    before = os.getloadavg()[0]
    driver, slots = await Driver.of(target, steps, options.engine.model), options.engine.sequences
    lengths = workload.part(workload.CALIBRATION_AT_S, 1000.0, options.scale)
    alone = await driver.alone(options.engine.context)
    await driver.loaded(lengths, options.calibration_s / 2)
    first = driver.recorded()
    known = campaign.profile_of(first, alone, options.engine)
    whole = workload.part(workload.REPLAY_AT_S, options.seconds, options.scale)
    chosen = workload.at_load(whole, known, slots, options.load, 1)
    print(f"calibrated on {len(first)} steps, replaying {len(chosen)} requests", file=sys.stderr)
    trace, real = await driver.replay(chosen)
    replayed = driver.recorded()[len(first) :]
    await driver.loaded(lengths, options.calibration_s / 2)
    calibration = first + driver.recorded()[len(first) + len(replayed) :]
    profile = campaign.profile_of(calibration, alone, options.engine)
    simulated = lone.serve(trace, profile, slots)
    return Outcome(
        profile,
        simulated.busy_s / trace.duration_s,
        trace,
        (len(real.gaps) + len(real.ttft)) / float(trace.output.sum()),
        compare.figures(real, simulated),
        (len(calibration), len(replayed), len(first)),
        calibrate.error_percent(replayed, profile),
        (before, os.getloadavg()[0]),
    )


def _results(outcome: Outcome) -> dict[str, Any]:
    return {
        "requests": len(outcome.trace),
        "busyShare": round(outcome.busy, 3),
        "eventsPerToken": round(outcome.events, 4),
        "calibrationSteps": outcome.steps[0],
        "replaySteps": outcome.steps[1],
        "stepsBeforeReplay": outcome.steps[2],
        "heldOutErrorPercent": outcome.profile.residual_percent,
        "replayErrorPercent": round(outcome.error_percent, 1),
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
let steps last {stretch:.2f} times what the streams beside them take.
The machine's load average was {before:.1f} before and {after:.1f} after.

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
        seconds=trace.duration_s,
        trace=workload.TRACE,
        divisor=options.scale.divisor,
        prompt=int(np.median(trace.prompt)),
        output=int(np.median(trace.output)),
        events=outcome.events,
        busy=outcome.busy,
        fitted=outcome.steps[0],
        held=profile.residual_percent,
        error=outcome.error_percent,
        replayed=outcome.steps[1],
        constant=1e3 * profile.request_seconds,
        token=1e6 * profile.request_token_seconds,
        stretch=profile.prefill_stretch,
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
