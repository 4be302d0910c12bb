"""Trace files → traces. The format is found from the columns, never from the name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from headrace.bench.trace import Blocks, Lengths, Series, Trace

AnyTrace = Trace | Series | Lengths
MOST_TOKENS = 10_000_000  # of a prompt or an answer: more is an error of the file
MOST = 1e300  # of any other number
MOST_DAYS = 1000  # from the first arrival to the last
_FRACTION = 26  # characters of a timestamp that the ISO parser takes: six fractional digits


class TraceError(ValueError):
    """A trace file cannot be read; the message names the file and the line."""


def read(path: Path) -> AnyTrace:
    """The trace of a file: .npz (packed), JSON lines with block hashes, or CSV. Raises TraceError, OSError."""
    if path.suffix == ".npz":
        from headrace.bench.packed import load

        return load(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            if first.lstrip().startswith("{"):
                return _mooncake(path, file)
            return _csv(path, file)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: no text in UTF-8") from error


def _csv(path: Path, lines: Iterable[str]) -> AnyTrace:
    rows = csv.DictReader(lines)
    columns = {name.strip() for name in rows.fieldnames or ()}
    for needed, reader in _CSV_FORMATS:
        if needed <= columns:
            return reader(path, _rows(path, rows))
    raise TraceError(f"{path}: unknown columns {', '.join(sorted(columns)) or '(none)'}")


def _rows(path: Path, rows: csv.DictReader[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for row in rows:
        place = f"{path}: line {rows.line_num}"
        if None in row.values():
            raise TraceError(f"{place}: fewer fields than columns")
        yield place, {str(name).strip(): value for name, value in row.items()}


def _tokens(place: str, row: dict[str, str], name: str) -> float:
    return _number(place, row, name, MOST_TOKENS)


def _number(place: str, row: dict[str, str], name: str, most: float = MOST) -> float:
    try:
        value = float(row[name])
    except ValueError as error:
        raise TraceError(f"{place}: {name} is {row[name]!r}, not a number") from error
    return _possible(place, name, value, most)


def _possible(place: str, name: str, value: float, most: float) -> float:
    """The same number. Raises TraceError."""
    if not 0 <= value <= most:
        raise TraceError(f"{place}: {name} of {value:g} cannot be")
    return value


def _azure(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Trace:
    times, prompts, outputs = [], [], []
    for place, row in rows:
        try:
            times.append(datetime.fromisoformat(row["TIMESTAMP"].strip()[:_FRACTION]).timestamp())
        except ValueError as error:
            raise TraceError(f"{place}: TIMESTAMP {row['TIMESTAMP']!r} is no time") from error
        prompts.append(_tokens(place, row, "ContextTokens"))
        outputs.append(_tokens(place, row, "GeneratedTokens"))
    return make(path.stem, times, prompts, outputs)


def _burst(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Trace:
    """Rows without response tokens are failures of the source and are left out."""
    kept: list[tuple[float, float, float]] = []
    for place, row in rows:
        at, prompt = _number(place, row, "Timestamp"), _tokens(place, row, "Request tokens")
        if (output := _tokens(place, row, "Response tokens")) > 0:
            kept.append((at, prompt, output))
    return make(path.stem, *(list(column) for column in zip(*kept, strict=True)) if kept else ([], [], []))


def _servegen(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Series:
    starts, rates, cvs = [], [], []
    for place, row in rows:
        starts.append(_number(place, row, "window_start_s"))
        rates.append(_number(place, row, "total_rate_rps"))
        cvs.append(_number(place, row, "rate_weighted_cv"))
    if len(starts) < 2:
        raise TraceError(f"{path}: fewer than two windows")
    return series(path.stem, starts, rates, cvs)


def _vidur(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Lengths:
    pairs = [(_tokens(p, r, "num_prefill_tokens"), _tokens(p, r, "num_decode_tokens")) for p, r in rows]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Lengths(path.stem, table[:, 0], np.maximum(1, table[:, 1]))


_Reader = Callable[[Path, Iterable[tuple[str, dict[str, str]]]], AnyTrace]
_CSV_FORMATS: tuple[tuple[set[str], _Reader], ...] = (
    ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, _azure),
    ({"Timestamp", "Request tokens", "Response tokens"}, _burst),
    ({"window_start_s", "total_rate_rps", "rate_weighted_cv"}, _servegen),
    ({"num_prefill_tokens", "num_decode_tokens"}, _vidur),
)


class _Line(msgspec.Struct, frozen=True):
    """A request of a Mooncake trace."""

    timestamp: float  # ms
    input_length: float
    output_length: float
    hash_ids: list[int] = []


def _mooncake(path: Path, lines: Iterable[str]) -> Trace:
    times, prompts, outputs = [], [], []
    ids: list[int] = []
    ends: list[int] = []
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            entry = decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{place}: {error}") from error
        times.append(_possible(place, "timestamp", entry.timestamp, MOST) / 1000.0)
        prompts.append(_possible(place, "input_length", entry.input_length, MOST_TOKENS))
        outputs.append(_possible(place, "output_length", entry.output_length, MOST_TOKENS))
        ids.extend(entry.hash_ids)
        ends.append(len(ids))
    trace = make(path.stem, times, prompts, outputs)
    order = np.argsort(np.array(times), kind="stable")
    blocks = Blocks(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64)).take(order) if ids else None
    return Trace(trace.name, trace.arrival_s, trace.prompt, trace.output, trace.duration_s, blocks)


def make(name: str, times: list[float], prompts: list[float], outputs: list[float]) -> Trace:
    """A Trace from columns in any order: sorted, from zero on, outputs at least one token."""
    if not times:
        raise TraceError(f"{name}: no requests")
    at = np.array(times, dtype=np.float64)
    order = np.argsort(at, kind="stable")
    at = at[order] - at.min()
    if at[-1] > MOST_DAYS * 86_400:
        raise TraceError(
            f"{name}: {at[-1] / 86_400:.0f} days from the first arrival to the last, more than {MOST_DAYS}"
        )
    lengths = np.array(prompts, dtype=np.int64)[order], np.array(outputs, dtype=np.int64)[order]
    duration = float(at[-1]) + (float(at[-1]) / max(1, len(at) - 1) or 1.0)
    return Trace(name, at, np.maximum(1, lengths[0]), np.maximum(1, lengths[1]), duration)


def series(name: str, starts: list[float], rates: list[float], cvs: list[float]) -> Series:
    """A Series from windows; missing windows and windows with rate 0 (gaps of the source) are interpolated."""
    order = np.argsort(np.array(starts))
    start, rate, cv = (np.array(column, dtype=np.float64)[order] for column in (starts, rates, cvs))
    window = float(np.median(np.diff(start)))
    if (np.diff(start) <= 0).any():
        raise TraceError(f"{name}: two windows start at the same time")
    if start[-1] - start[0] > MOST_DAYS * 86_400:
        raise TraceError(f"{name}: windows of more than {MOST_DAYS} days")
    whole = start[0] + np.arange(round((start[-1] - start[0]) / window) + 1) * window
    known = rate > 0
    if not known.any():
        raise TraceError(f"{name}: no window has a rate")
    missing = len(whole) - int(known.sum())
    return Series(
        name,
        window,
        np.interp(whole, start[known], rate[known]),
        np.interp(whole, start[known], np.maximum(cv[known], 1e-3)),
        missing,
    )
