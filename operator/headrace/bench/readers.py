"""Trace files → traces. The format is found from the columns, never from the name."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from headrace.bench.trace import Blocks, Lengths, Series, Trace

AnyTrace = Trace | Series | Lengths
_FRACTION = 26  # characters of a timestamp that the ISO parser takes: six fractional digits


class TraceError(ValueError):
    """A trace file cannot be read; the message names the file and the line."""


def read(path: Path) -> AnyTrace:
    """The trace of a file: .npz (packed), JSON lines with block hashes, or CSV. Raises TraceError, OSError."""
    if path.suffix == ".npz":
        from headrace.bench.packed import load

        return load(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        if first.lstrip().startswith("{"):
            return _mooncake(path, file)
        return _csv(path, file)


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


def _number(place: str, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError as error:
        raise TraceError(f"{place}: {name} is {row[name]!r}, not a number") from error
    if not 0 <= value < float("inf"):
        raise TraceError(f"{place}: {name} of {value} cannot be")
    return value


def _azure(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Trace:
    times, prompts, outputs = [], [], []
    for place, row in rows:
        try:
            times.append(datetime.fromisoformat(row["TIMESTAMP"].strip()[:_FRACTION]).timestamp())
        except ValueError as error:
            raise TraceError(f"{place}: TIMESTAMP {row['TIMESTAMP']!r} is no time") from error
        prompts.append(_number(place, row, "ContextTokens"))
        outputs.append(_number(place, row, "GeneratedTokens"))
    return make(path.stem, times, prompts, outputs)


def _burst(path: Path, rows: Iterable[tuple[str, dict[str, str]]]) -> Trace:
    """Rows without response tokens are failures of the source and are left out."""
    kept: list[tuple[float, float, float]] = []
    for place, row in rows:
        values = tuple(_number(place, row, n) for n in ("Timestamp", "Request tokens", "Response tokens"))
        if values[2] > 0:
            kept.append((values[0], values[1], values[2]))
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
    pairs = [(_number(p, r, "num_prefill_tokens"), _number(p, r, "num_decode_tokens")) for p, r in rows]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Lengths(path.stem, table[:, 0], np.maximum(1, table[:, 1]))


_Reader = Callable[[Path, Iterable[tuple[str, dict[str, str]]]], AnyTrace]
_CSV_FORMATS: tuple[tuple[set[str], _Reader], ...] = (
    ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, _azure),
    ({"Timestamp", "Request tokens", "Response tokens"}, _burst),
    ({"window_start_s", "total_rate_rps", "rate_weighted_cv"}, _servegen),
    ({"num_prefill_tokens", "num_decode_tokens"}, _vidur),
)


def _mooncake(path: Path, lines: Iterable[str]) -> Trace:
    times, prompts, outputs = [], [], []
    ids: list[int] = []
    ends: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            times.append(float(entry["timestamp"]) / 1000.0)
            prompts.append(float(entry["input_length"]))
            outputs.append(float(entry["output_length"]))
            ids.extend(int(i) for i in entry.get("hash_ids", ()))
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{path}: line {number}: {error!r}") from error
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
    lengths = np.array(prompts, dtype=np.int64)[order], np.array(outputs, dtype=np.int64)[order]
    duration = float(at[-1]) + (float(at[-1]) / max(1, len(at) - 1) or 1.0)
    return Trace(name, at, np.maximum(1, lengths[0]), np.maximum(1, lengths[1]), duration)


def series(name: str, starts: list[float], rates: list[float], cvs: list[float]) -> Series:
    """A Series from windows; missing windows and windows with rate 0 (gaps of the source) are interpolated."""
    order = np.argsort(np.array(starts))
    start, rate, cv = (np.array(column, dtype=np.float64)[order] for column in (starts, rates, cvs))
    window = float(np.median(np.diff(start)))
    if window <= 0:
        raise TraceError(f"{name}: window starts do not grow")
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
