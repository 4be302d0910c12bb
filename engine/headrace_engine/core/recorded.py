"""A runner whose steps are written to a file, a line of JSON each: how large they were and how long they took.

A line is `{"seconds": .., "between": .., "sequences": n, "kvTokens": k, "prefill": [[tokens, context], ..]}`: the
step's own seconds; those between the end of the step before and its beginning, if a row of that step goes on in it
(else the engine may have waited, and it is left out); rows that decode and the tokens of context that they attend to;
the pieces of prompts. Nothing else is written: no text, no token, no id. `headrace bench calibrate FILE` makes a
profile of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from headrace_engine.core.plan import KvSpec, Runner, StepPlan, StepResult

log = logging.getLogger(__name__)


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step."""

    seconds: float
    between: float | None = None
    sequences: int = 0
    kv_tokens: int = 0
    prefill: list[tuple[int, int]] = []


class Sink(Protocol):
    """Where lines go."""

    def write(self, data: bytes, /) -> int | None:
        """Whole lines. Raises OSError."""
        ...

    def close(self) -> None:
        """Nothing more is written."""


def line_of(plan: StepPlan, seconds: float, between: float | None) -> Line:
    """What is written of a step. A piece of one token counts as a row that decodes, as it takes hardly longer."""
    rows = [step for step in plan.steps if step.count == 1]
    return Line(
        seconds=round(seconds, 7),
        between=None if between is None else round(between, 7),
        sequences=len(rows),
        kv_tokens=sum(step.start + step.count for step in rows),
        prefill=[(step.count, step.start) for step in plan.steps if step.count > 1],
    )


class Recorded:
    """Another runner, recorded. A file that cannot be written ends the recording, not the engine."""

    def __init__(self, runner: Runner, file: Sink, clock: Callable[[], float]):
        """`clock`: monotonic seconds."""
        self.lag = runner.lag
        self.kv: KvSpec = runner.kv
        self._runner = runner
        self._file: Sink | None = file
        self._clock = clock
        self._launched: deque[tuple[StepPlan, float]] = deque()
        self._before: frozenset[int] = frozenset()  # rows of the last step that ended
        self._ended = 0.0

    def launch(self, plan: StepPlan) -> None:
        """As the runner."""
        self._launched.append((plan, self._clock()))
        try:
            self._runner.launch(plan)
        except Exception:
            self._launched.pop()
            raise

    def collect(self) -> StepResult:
        """As the runner, and write the step. One that is lost is not written."""
        plan, began = self._launched.popleft()
        result = self._runner.collect()
        rows = frozenset(step.row for step in plan.steps)
        between = max(0.0, began - self._ended) if rows & self._before else None
        self._before, self._ended = rows, self._clock()
        self._write(line_of(plan, result.ms / 1000.0, between))
        return result

    def _write(self, line: Line) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            log.error("steps are not recorded any more", extra={"error": error.strerror})
            self._file = None

    def close(self) -> None:
        """Everything is in the file."""
        if self._file is not None:
            self._file.close()


def recorded(runner: Runner, path: str, clock: Callable[[], float]) -> Recorded:
    """Record into a file, which is emptied first; each line is there at once. Raises OSError."""
    return Recorded(runner, Path(path).open("wb", buffering=0), clock)
