"""`headrace replay FILE`: decide again from a recording, and compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHOWN = 20  # differences


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "replay",
        help="re-run recorded scaling decisions",
        description="Re-runs the scaling decisions of a recording (JSON lines, as the operator logs them) from their "
        "recorded inputs. Exit status 0: every decision is the recorded one; 1: some differ; 2: unreadable.",
    )
    parser.add_argument("file", metavar="FILE", help="the recording; - reads standard input")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and report."""
    from headrace.cli.main import UsageError
    from headrace.scaling.record import RecordError, replay

    try:
        result = replay(_lines(args.file))
    except RecordError as error:
        raise UsageError(f"{args.file}: {error}") from error
    for item in result.differences[:SHOWN]:
        print(f"line {item.line}, {item.model}: {item.field} was {item.recorded}, is now {item.replayed}")
    if len(result.differences) > SHOWN:
        print(f"and {len(result.differences) - SHOWN} more differences")
    if not result.decisions:
        raise UsageError(f"{args.file}: holds no decision")
    verdict = "differ" if result.differences else "are identical"
    print(f"{result.decisions} decisions, {result.changes} of them changes: they {verdict} on replay.")
    return 1 if result.differences else 0


def _lines(name: str) -> Iterable[str]:
    from headrace.cli.main import UsageError

    if name == "-":
        return sys.stdin
    try:
        return Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
