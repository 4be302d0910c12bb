"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from benchmarks.engine import make_model
from benchmarks.engine.peers import cells, install, machine, plan, report
from benchmarks.engine.peers.campaign import Campaign
from benchmarks.engine.peers.plan import Settings
from benchmarks.engine.peers.progress import minutes, say
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Store
from benchmarks.engine.peers.servers import HEADRACE, Setup

CELLS = "cells.jsonl"  # every result, in the output folder

ABOUT = """\
Measures the engine beside vLLM (CPU build), llama.cpp's server and `transformers serve`, on this machine, in one run.

Installs the peers into environments of their own and makes a random 107M model (both kept in the cache folder,
~/.cache/headrace/peers, or below $HEADRACE_CACHE), then starts all servers on loopback and loads them in turn, the
others being stopped meanwhile: closed loop, 128 tokens in, 64 out, new prompts in every round. Beside that: the gaps of
eight streams while a long prompt arrives, warm and cold prefixes, Headrace's speed from small pools, steps inside one
process, start-up, memory.

Every result is kept at once in DIR/cells.jsonl; the same command goes on where it was stopped. DIR/report.md,
DIR/results.json and the plots are made from it at the end, or by --report without measuring.

  python -m benchmarks.engine.peers --prepare                   install, make the model; 15 to 25 minutes once
  python -m benchmarks.engine.peers --quick --output /tmp/q     one round at c = 1, 8: is everything there?
  python -m benchmarks.engine.peers --output DIR                all of it, see --estimate
"""


def main() -> int:
    """Exit code: 1 if a server could not be measured, 2 for a wrong command line or a report of no results."""
    parser = _parser()
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    cache = Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace") / "peers"
    settings = _settings(parser, options)
    if options.report:
        if not Store(options.output / CELLS).all():
            say(f"there is nothing to report: {options.output / CELLS} holds no results; --output names their folder")
            return 2
        return _report(options.output, settings)
    missing = _prepare(cache, settings)
    if options.prepare:
        return 1 if missing else 0
    return _measure(options, cache, settings, missing)


def _leave(number: int, frame: object) -> None:
    """SIGTERM ends the benchmark as Ctrl-C does: the server that runs is stopped."""
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.engine.peers", description=ABOUT, formatter_class=raw)
    add = parser.add_argument
    add("--peers", default="vllm,llama.cpp,transformers", metavar="NAMES", help="beside Headrace (%(default)s)")
    add(
        "--rounds",
        type=int,
        default=9,
        metavar="N",
        help="closed loops of each server and concurrency, and of steps (%(default)s)",
    )
    add(
        "--starts",
        type=int,
        default=3,
        metavar="N",
        help=f"lives of each server, 1 to {plan.MOST_STARTS} (%(default)s)",
    )
    add("--concurrency", default="1,8,16,32", metavar="N,...", help="requests at a time (%(default)s)")
    add("--parts", default=",".join(plan.PARTS), metavar="NAMES", help="what to measure (%(default)s)")
    add("--output", type=Path, default=Path("out/peers"), metavar="DIR", help="where results go (%(default)s)")
    add("--minutes", type=float, default=float("inf"), metavar="N", help="begin nothing after so long (no limit)")
    add("--quick", action="store_true", help="one round, one start, c = 1 and 8, without steps, profile and pool")
    add("--prepare", action="store_true", help="only install the peers and make the model")
    add("--estimate", action="store_true", help="only say how long it will take")
    add("--report", action="store_true", help="only make the report again, from DIR/cells.jsonl")
    return parser


def _settings(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Settings:
    """From the command line. Raises SystemExit(2) for what makes no sense."""
    peers = [name for name in options.peers.split(",") if name]
    parts = options.parts.split(",")
    rounds, starts = (1, 1) if options.quick else (options.rounds, options.starts)
    for given, known, flag in ((peers, install.RECIPES, "--peers"), (parts, plan.PARTS, "--parts")):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{flag}: {', '.join(unknown)} is unknown; known: {', '.join(known)}")
    try:
        concurrency = tuple(sorted({int(n) for n in ("1,8" if options.quick else options.concurrency).split(",")}))
    except ValueError as error:
        parser.error(f"--concurrency: {error}")
    if not 1 <= starts <= min(plan.MOST_STARTS, rounds) or concurrency[0] < 1:
        parser.error(f"--rounds and --concurrency begin at 1, --starts is 1 to {plan.MOST_STARTS} and at most --rounds")
    return Settings((HEADRACE, *peers), rounds, starts, concurrency)


def model_folder(cache: Path) -> Path:
    """Where the model is, or will be."""
    return cache / f"model-{make_model.RECIPE}"


def _prepare(cache: Path, settings: Settings) -> dict[str, str]:
    """Make the model and install what is not there; peers that cannot be installed, and why."""
    if not (model_folder(cache) / "model.gguf").exists():
        say("making the model (usually 1 min)")
        make_model.make(model_folder(cache))
    missing = {}
    for name in settings.servers:
        if name != HEADRACE:
            try:
                install.ensure(cache, name)
            except install.InstallError as error:
                missing[name] = str(error)
                say(f"{name} cannot be installed: {error}")
    return missing


def _measure(options: argparse.Namespace, cache: Path, settings: Settings, missing: dict[str, str]) -> int:
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    model = model_folder(cache)
    places = max(*settings.concurrency, cells.STREAMS + 1)  # the long prompt beside the streams has its own
    campaign = Campaign(
        settings=settings,
        parts=("load", "gap", "prefix") if options.quick else tuple(options.parts.split(",")),
        setup=Setup(cache, model, sequences=places),
        store=Store(output / CELLS),
        logs=output / "logs",
        prompts=Prompts(model),
        failed=dict(missing),
        deadline=time.monotonic() + 60 * options.minutes,
    )
    if options.estimate:
        say(f"about {minutes(campaign.left())}")
        return 0
    _keep(output / "settings.json", settings)
    (output / "logs").mkdir(exist_ok=True)
    (output / "machine.json").write_text(json.dumps(machine.describe(), indent=1) + "\n")
    try:
        campaign.run()
    finally:
        (output / "missing.json").write_text(json.dumps(campaign.failed, indent=1) + "\n")
        _report(output, settings)
    return 1 if campaign.failed else 0


def _keep(path: Path, settings: Settings) -> None:
    """Write the settings, or hold them against those of the run that is resumed. Raises SystemExit(2)."""
    if not path.exists():
        path.write_bytes(msgspec.json.encode(settings))
    elif msgspec.json.decode(path.read_bytes(), type=Settings) != settings:
        say(f"{path.parent} holds results of other settings; choose another --output")
        raise SystemExit(2)


def _report(output: Path, settings: Settings) -> int:
    kept = output / "settings.json"
    if kept.exists():
        settings = msgspec.json.decode(kept.read_bytes(), type=Settings)
    described = output / "machine.json"
    missing = output / "missing.json"
    result = report.Result(
        settings=settings,
        machine=json.loads(described.read_text()) if described.exists() else {},
        records=Store(output / CELLS).all(),
        missing=json.loads(missing.read_text()) if missing.exists() else {},
    )
    report.write(result, output)
    say(f"wrote {output / 'report.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
