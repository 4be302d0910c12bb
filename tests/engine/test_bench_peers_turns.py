"""Steps that are measured in turn, with programs that answer as the engines' do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from benchmarks.engine.peers import turns
from benchmarks.engine.peers.processes import PROC, stat

FAST = "import sys, json\nfor kind in sys.stdin: print(json.dumps([kind.strip(), 2.0, 1.0, 4.0]), flush=True)"
BROKEN = "import sys\nsys.stdin.readline()\nsys.exit(3)"


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def until(met: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(engine: turns.Engine) -> str:
    """As `ps` shows it."""
    found = stat(PROC / str(engine._process.pid) / "stat")
    return "gone" if found is None else found[1][0]


def engine(stack: ExitStack, name: str, program: str) -> turns.Engine:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    found = turns.Engine(name, process)
    stack.enter_context(process)
    stack.callback(found.close)
    return found


def test_a_round_asks_every_engine_for_every_step_and_another_one_first_each_time(
    started: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    ask = turns.Engine.ask

    def recorded(self: turns.Engine, kind: str) -> turns.Row:
        asked.append((self.name, kind))
        return ask(self, kind)

    monkeypatch.setattr(turns.Engine, "ask", recorded)
    engines = {name: engine(started, name, FAST) for name in ("headrace", "vllm")}
    found = turns.measure(engines, 1)
    assert [(record.server, record.round) for record in found] == [("headrace", 1), ("vllm", 1)]
    assert [row[0] for row in found[0].rows] == [*turns.KINDS]
    assert found[0].rows[0][1:] == (2.0, 1.0, 4.0)
    assert [name for name, kind in asked if kind == "decode 1"] == ["vllm", "headrace"]
    assert [name for name, kind in asked if kind == "decode 8"] == ["headrace", "vllm"]
    until(lambda: [state(engine) for engine in engines.values()] == ["T", "T"])  # stopped


def test_an_engine_that_ends_is_named(started: ExitStack) -> None:
    with pytest.raises(turns.Ended, match="vllm's steps could not be measured"):
        turns.measure({"vllm": engine(started, "vllm", BROKEN)}, 0)
