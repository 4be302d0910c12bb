"""Recorded decisions as JSON lines, and their replay: the same inputs must give the same answers.

A recording holds, by Model: `window` (where it begins: what was known then, and again when the policy changes), then
`sample` and `decision` in the order in which they happened. Every decision carries its policy, replicas and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from headrace.scaling.decide import decide
from headrace.scaling.types import Decision, Memory, ModelKey, Policy, Replicas, Sample
from headrace.scaling.window import Window, WindowState

T = TypeVar("T")


class RecordError(ValueError):
    """A recording cannot be read; the message names the line."""


class Difference(msgspec.Struct, frozen=True):
    """One replayed decision that is not the recorded one."""

    line: int
    model: str
    field: str
    recorded: str
    replayed: str


class Replayed(msgspec.Struct, frozen=True):
    """What a replay found."""

    decisions: int
    changes: int  # decisions that changed the number of replicas
    differences: tuple[Difference, ...]


class Recorder:
    """Writes one line per event through `write`, which gets the line without its end."""

    def __init__(self, write: Callable[[str], None]):
        self._write = write

    def window(self, key: ModelKey, policy: Policy, window: Window) -> None:
        """A Model's history as it stands: first of all, and after a change of policy."""
        self._line("window", key, policy=policy, window=window.state())

    def sample(self, key: ModelKey, sample: Sample) -> None:
        """A sample that was added to the window."""
        self._line("sample", key, sample=sample)

    def decision(self, key: ModelKey, policy: Policy, replicas: Replicas, memory: Memory, decision: Decision) -> None:
        """A decision and what it was made from; `memory` is the one that went in."""
        self._line("decision", key, policy=policy, replicas=replicas, memory=memory, decision=decision)

    def _line(self, kind: str, key: ModelKey, **values: object) -> None:
        plain = {name: _finite(msgspec.to_builtins(value)) for name, value in values.items()}
        self._write(msgspec.json.encode({"kind": kind, "model": "/".join(key), **plain}).decode())


class Ring:
    """The newest part of a recording, in memory: of each Model the last one or two segments. Each replays alone.

    For each sample call `before`, then `sample`, then `decision`.
    """

    def __init__(self, decisions: int = 120):
        self._decisions = decisions  # of one segment; a sample without one takes as much of it as half
        self._segments: dict[ModelKey, list[_Segment]] = {}

    def before(self, key: ModelKey, policy: Policy, window: Window) -> None:
        """Begin a segment if one is due: the first, after a full one, or after a change of policy."""
        segments = self._segments.setdefault(key, [])
        last = segments[-1] if segments else None
        if last is None or last.closed or len(last.lines) > 2 * self._decisions or last.policy != policy:
            segments.append(_Segment(policy))
            del segments[:-2]
            Recorder(segments[-1].lines.append).window(key, policy, window)

    def sample(self, key: ModelKey, sample: Sample) -> None:
        """A sample that was added to the window."""
        Recorder(self._segments[key][-1].lines.append).sample(key, sample)

    def decision(self, key: ModelKey, policy: Policy, replicas: Replicas, memory: Memory, decision: Decision) -> None:
        """A decision and what it was made from; `memory` is the one that went in."""
        Recorder(self._segments[key][-1].lines.append).decision(key, policy, replicas, memory, decision)

    def close(self, key: ModelKey) -> None:
        """The window changed by other means than a sample: the next segment begins with it as it is then."""
        for segment in self._segments.get(key, ())[-1:]:
            segment.closed = True

    def forget(self, key: ModelKey) -> None:
        """The Model is gone."""
        self._segments.pop(key, None)

    def keep(self, keys: Container[ModelKey]) -> None:
        """Forget the Models that are not among these."""
        self._segments = {key: segments for key, segments in self._segments.items() if key in keys}

    def lines(self, key: ModelKey | None = None) -> list[str]:
        """The recording of one Model, or of all."""
        keys = sorted(self._segments) if key is None else [key]
        return [line for k in keys for segment in self._segments.get(k, ()) for line in segment.lines]


@dataclass
class _Segment:
    policy: Policy
    lines: list[str] = field(default_factory=list)
    closed: bool = False


def replay(lines: Iterable[str]) -> Replayed:
    """Decide again from what was recorded. Raises RecordError where a line cannot be read."""
    windows: dict[str, Window] = {}
    differences: list[Difference] = []
    decisions = changes = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _entry(number, line)
        model = str(entry["model"])
        if entry["kind"] == "window":
            windows[model] = Window(_read(number, entry, "policy", Policy), _read(number, entry, "window", WindowState))
        elif model not in windows:
            raise RecordError(f"line {number}: the recording of {model} does not begin with its window")
        elif entry["kind"] == "sample":
            windows[model].add(_read(number, entry, "sample", Sample))
        elif entry["kind"] == "decision":
            recorded = _read(number, entry, "decision", Decision)
            differences.extend(_compare(number, entry, recorded, windows[model]))
            decisions += 1
            changes += recorded.changes
        else:
            raise RecordError(f"line {number}: unknown kind {entry['kind']!r}")
    return Replayed(decisions, changes, tuple(differences))


def _compare(number: int, entry: dict[str, Any], recorded: Decision, window: Window) -> list[Difference]:
    replayed = decide(
        _read(number, entry, "policy", Policy),
        window,
        _read(number, entry, "replicas", Replicas),
        recorded.at,
        _read(number, entry, "memory", Memory),
    )
    before = _finite(msgspec.to_builtins(recorded))
    after = _finite(msgspec.to_builtins(replayed))
    return [
        Difference(number, str(entry["model"]), name, _show(before[name]), _show(after[name]))
        for name in before
        if _show(before[name]) != _show(after[name])
    ]


def _show(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _entry(number: int, line: str) -> dict[str, Any]:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"line {number} is not JSON: {error}") from error
    if not isinstance(entry, dict) or "kind" not in entry or "model" not in entry:
        raise RecordError(f"line {number} has no kind and model")
    return entry


def _read(number: int, entry: dict[str, Any], name: str, kind: type[T]) -> T:
    """A part of an entry; numbers that JSON has no word for stand there as text."""
    try:
        return msgspec.convert(entry.get(name), kind, strict=False)
    except msgspec.ValidationError as error:
        raise RecordError(f"line {number}: {name}: {error}") from error


def _finite(value: Any) -> Any:
    """The same value with infinities and NaN as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
