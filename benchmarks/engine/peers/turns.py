"""Steps inside the engines' processes, measured in turn: a machine whose speed drifts is as fast for one as for all.

Every engine is loaded once and then stopped (SIGSTOP), so that it takes nothing from the others, until it is asked. In
each round it is asked for one kind of step after the other, each right before or after the others are asked for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engine.peers import install, plan
from benchmarks.engine.peers.processes import send
from benchmarks.engine.peers.progress import say
from benchmarks.engine.peers.records import Steps
from benchmarks.engine.peers.servers import HEADRACE, ROOT, SERVERS, Setup, clean_environment, stop

INSIDE = (HEADRACE, "vllm")  # whose steps can be measured without a server
KINDS = (
    *("decode 1", "decode 8", "decode 16", "decode 32"),
    *("prefill 128", "prefill 512", "prefill 2000"),
    "decode 15 + prefill 128",
)
Row = tuple[str, float, float, float]


class Ended(Exception):
    """An engine's process has ended; the message names the engine."""


class Engine:
    """A process that answers the name of a kind of step with its times."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]):
        self.name = name
        self._process = process

    def ask(self, kind: str) -> Row:
        """Its times: (kind, median ms, least ms, CPU ms). Raises Ended."""
        question, answer = self._pipes
        send(self._process.pid, signal.SIGCONT)
        try:
            question.write(kind.encode() + b"\n")
            question.flush()
            what, *ms = json.loads(answer.readline())
        except (OSError, ValueError) as error:
            raise Ended(f"{self.name}'s steps could not be measured (exit {self._process.poll()})") from error
        send(self._process.pid, signal.SIGSTOP)
        middle, least, cpu = map(float, ms)
        return str(what), middle, least, cpu

    def close(self) -> None:
        """End it."""
        stop(self._process)

    @property
    def _pipes(self) -> tuple[Any, Any]:
        return self._process.stdin, self._process.stdout


def command(setup: Setup, name: str) -> list[str]:
    """Of the program that measures an engine's steps."""
    model = str(setup.model)
    if name == HEADRACE:
        return [sys.executable, "-m", "benchmarks.engine.peers.inside", model]
    python = install.folder_of(setup.cache, name) / "bin" / "python"
    return [str(python), str(Path(__file__).with_name("inside_vllm.py")), model]


@contextmanager
def engines(setup: Setup, names: Sequence[str], logs: Path) -> Iterator[dict[str, Engine]]:
    """One process of each, loaded one after the other, until the end. Raises Ended."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            log = stack.enter_context((logs / f"inside-{name}.log").open("ab"))
            environment = clean_environment(SERVERS[name].environment(setup))
            process = subprocess.Popen(
                command(setup, name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment,
            )
            found[name] = Engine(name, process)
            stack.callback(found[name].close)
            found[name].ask(KINDS[0])
        yield found


def measure(engines: dict[str, Engine], number: int) -> list[Steps]:
    """One round of all kinds of steps. Raises Ended."""
    rows: dict[str, list[Row]] = {name: [] for name in engines}
    say(f"measuring steps inside one process, round {number + 1}")
    for at, kind in enumerate(KINDS):
        for name in plan.turned(list(engines), number + at):
            rows[name].append(engines[name].ask(kind))
    return [Steps(server=name, round=number, rows=found) for name, found in rows.items()]
