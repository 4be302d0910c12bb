"""`headrace bench autoscaling`: the controller in the simulator, against other autoscalers and an oracle."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.bench import builtin

if TYPE_CHECKING:
    from headrace.bench.profile import Profile


ABOUT = """\
Writes results.json and report.md with plots into a folder. The format of a trace is found from its columns:
Azure CSV, Mooncake JSON lines, BurstGPT CSV, ServeGen rates, or a packed .npz. A cell is a trace, a cold start
and a service level; the trace must last at least six cold starts."""


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("bench", help="benchmarks that need no cluster")
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _register_autoscaling(kinds)
    _register_calibrate(kinds)


def _register_autoscaling(kinds: Any) -> None:
    scaling = kinds.add_parser(
        "autoscaling",
        help="replay traces against the controller, other autoscalers and an oracle",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=ABOUT,
        epilog=_builtin(),
    )
    add = scaling.add_argument
    add(
        "--trace",
        action="append",
        default=[],
        metavar="FILE",
        help="file, or name of a packed trace (below); once for each; default: all of those",
    )
    add("--cold-start", default="30,120,300", metavar="SECONDS", help="separated by commas, default %(default)s")
    add(
        "--profile",
        default="h100-8b",
        metavar="NAME",
        help="engine profile: a name (below) or a .json file, default %(default)s",
    )
    add("--fraction", type=float, default=1.0, metavar="SHARE", help="replay the first share of each trace")
    add("--jobs", type=int, default=1, metavar="N", help="traces at one time")
    add("--seed", type=int, default=1, metavar="N", help="of everything random")
    add("--check", action="store_true", help="replay the winners by discrete events, too")
    add("--resume", action="store_true", help="keep what DIR/results.json has: only the controller is run anew")
    add("--output", type=Path, required=True, metavar="DIR")
    scaling.set_defaults(run=run)


def _register_calibrate(kinds: Any) -> None:
    fit = kinds.add_parser(
        "calibrate",
        help="fit an engine profile to recorded steps",
        description="Reads steps as JSON lines {seconds, sequences, kvTokens, prefill: [[tokens, context], ...]} and "
        "prints the profile with the error on steps that were held out.",
    )
    fit.add_argument("steps", type=Path, metavar="FILE", help="recorded steps")
    fit.add_argument(
        "--like",
        default="cpu-demo",
        metavar="NAME",
        help=f"profile that gives the rest: {', '.join(builtin.profiles())} or a .json file, default %(default)s",
    )
    fit.add_argument("--name", metavar="NAME", help="what the profile is called; default: FILE's name without suffix")
    fit.set_defaults(run=_calibrate)


def _builtin() -> str:
    """The names to choose from, one a line."""
    parts = (("packed traces", builtin.loads()), ("engine profiles", builtin.profiles()))
    return "\n\n".join("\n  ".join((f"{what}:", *names)) for what, names in parts)


def run(arguments: argparse.Namespace) -> int:
    """Run and write."""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        from headrace.cli.main import UsageError

        raise UsageError("benchmarks need numpy: install headrace[bench]") from error
    return _autoscaling(arguments)


def _calibrate(arguments: argparse.Namespace) -> int:
    import msgspec

    from headrace.bench import calibrate
    from headrace.cli.main import UsageError

    like = _profile("--like", arguments.like)
    try:
        steps = calibrate.read(arguments.steps)
    except OSError as error:
        raise UsageError(f"{arguments.steps}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        fit = calibrate.fit(steps)
    except ValueError as error:
        raise UsageError(f"{arguments.steps}: {error}") from error
    name, about = arguments.name or arguments.steps.stem, fit.about(arguments.steps.name, like)
    found = msgspec.structs.replace(fit.profile(like), name=name, about=about)
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    if fit.doubt:
        print(f"warning: {fit.doubt}", file=sys.stderr)
    return 0


def _profile(option: str, name: str) -> Profile:
    """The profile that an option names. Raises UsageError."""
    from headrace.bench import profile
    from headrace.cli.main import UsageError

    try:
        return profile.load(name)
    except FileNotFoundError as error:
        names = ", ".join(profile.names())
        raise UsageError(f"{option} {name}: no such profile; write one of {names}, or a .json file") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {name}: {getattr(error, 'strerror', None) or error}") from error


def _autoscaling(arguments: argparse.Namespace) -> int:
    from headrace.bench import autoscaling
    from headrace.bench.cells import Grid
    from headrace.bench.readers import TraceError
    from headrace.cli.main import UsageError

    if not 0 < arguments.fraction <= 1:
        raise UsageError("--fraction must be above 0 and at most 1")
    if arguments.jobs < 1:
        raise UsageError("--jobs must be at least 1")
    _profile("--profile", arguments.profile)  # found out now, and in words
    options = autoscaling.Options(
        traces=tuple(arguments.trace),
        grid=Grid(_seconds(arguments.cold_start)),
        profile=arguments.profile,
        fraction=arguments.fraction,
        seed=arguments.seed,
        jobs=arguments.jobs,
        check=arguments.check,
    )
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)  # found out now, not after an hour
    except OSError as error:
        raise UsageError(f"--output {arguments.output}: {error.strerror}") from error
    try:
        if arguments.resume:
            options = replace(options, kept=autoscaling.kept(arguments.output))
            if wrong := options.kept and autoscaling.contradiction(arguments.output, _command(arguments)):
                raise UsageError(f"--resume: {wrong}")
            if not options.kept:
                print(f"--resume: {arguments.output} holds no results yet: everything is run", file=sys.stderr)
        report = None
        for rows in autoscaling.run(options):
            if rows:  # what is done outlives what fails later
                report = autoscaling.write(rows, arguments.output, _command(arguments))
    except (TraceError, OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    if report is None:
        raise UsageError("no trace has arrivals, or none is long enough for any of the cold starts")
    print(report)
    return 0


def _seconds(text: str) -> tuple[float, ...]:
    from headrace.cli.main import UsageError

    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--cold-start {text!r}: numbers of seconds, separated by commas") from error
    if not values or not all(0 < value <= 86_400 for value in values):
        raise UsageError(f"--cold-start {text!r}: seconds must be above 0 and at most a day")
    return tuple(dict.fromkeys(values))


def _command(arguments: argparse.Namespace) -> str:
    parts = ["headrace", "bench", "autoscaling"]
    for name in arguments.trace:
        parts += ["--trace", Path(name).name]
    parts += ["--cold-start", arguments.cold_start, "--profile", arguments.profile]
    parts += ["--fraction", f"{arguments.fraction:g}", "--seed", str(arguments.seed)]
    parts += [
        *(["--check"] if arguments.check else []),
        *(["--resume"] if arguments.resume else []),
        "--output",
        arguments.output.name,
    ]
    return shlex.join(parts)
