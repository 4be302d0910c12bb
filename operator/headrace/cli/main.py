"""`headrace`: the entry point. Each subcommand is a module of this package with `register(commands)`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from headrace import __version__

SUBCOMMANDS = ("plan", "explain", "replay", "key", "crds", "bench", "operator", "gateway")


class UsageError(Exception):
    """The user's input is at fault: printed as one sentence, exit status 2."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Serve language models on Kubernetes within their latency targets.",
        epilog="`headrace COMMAND --help` explains each command.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in SUBCOMMANDS:
        importlib.import_module(f"headrace.cli.{name}").register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; its return value is the exit status."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except UsageError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
