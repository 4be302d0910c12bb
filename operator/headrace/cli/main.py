"""`headrace`: the entry point. Each subcommand is a module of this package with `register(commands)`."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace import __version__

READER_LEFT = 128 + 13  # exit status of what SIGPIPE ends
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
SUBCOMMANDS = ("plan", "explain", "replay", "key", "crds", "bench", "operator", "gateway")
EXTRAS = ("bench", "gateway")  # extras with a command of their name; all others need no more than that of the operator


class UsageError(Exception):
    """The user's input is at fault: printed as one sentence, or a line for each fault, exit status 2."""


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
    """Run a subcommand; its return value is the exit status. Quiet where nobody reads the output, or no more."""
    if sys.stdout is None:  # the caller closed it
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_left():
            raise
        _discard()
        return READER_LEFT
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard()
        print(f"headrace: the output cannot be written: {error.strerror}", file=sys.stderr)
        return os.EX_IOERR


def _discard() -> None:
    """What is still to be written, also by the flush at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left() -> bool:
    """Nobody reads stdout any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except UsageError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("headrace"):
            raise
        command = run.__module__.rpartition(".")[2]
        extra = command if command in EXTRAS else "operator"
        print(f"headrace: the package {error.name} is missing: install headrace[{extra}]", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
