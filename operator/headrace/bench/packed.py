"""The compact form of traces, as committed beside this module: delta-encoded integers in a compressed .npz."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from headrace.bench import builtin
from headrace.bench.readers import AnyTrace, TraceError
from headrace.bench.trace import Blocks, Lengths, Series, Trace

FOLDER = builtin.TRACES
_MICRO = 1e6


def names() -> list[str]:
    """The packed traces that come with Headrace."""
    return builtin.traces()


def save(trace: AnyTrace, path: Path) -> None:
    """Write a trace. Arrival times are kept to the microsecond, rates and cv to 1e-4."""
    if isinstance(trace, Series):
        arrays = {
            "rate": np.round(trace.rate * 1e4).astype(np.int64),
            "cv": np.round(trace.cv * 1e4).astype(np.int64),
            "window": np.array([round(trace.window_s * _MICRO), trace.gaps]),
        }
    elif isinstance(trace, Lengths):
        arrays = {"prompt": trace.prompt.astype(np.int32), "output": trace.output.astype(np.int32)}
    else:
        at = np.round(trace.arrival_s * _MICRO).astype(np.int64)
        arrays = {
            "prompt": trace.prompt.astype(np.int32),
            "output": trace.output.astype(np.int32),
            "arrival": np.diff(at, prepend=0),
            "duration": np.array([round(trace.duration_s * _MICRO)]),
        }
        if trace.blocks is not None:
            arrays["blocks"] = np.diff(trace.blocks.ids, prepend=0).astype(np.int32)
            arrays["counts"] = np.diff(trace.blocks.ends, prepend=0).astype(np.int32)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> AnyTrace:
    """Read a packed trace. Raises TraceError where it is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: not a packed trace: {error}") from error
    name = path.stem
    if "rate" in arrays:
        window, gaps = arrays["window"]
        return Series(name, float(window) / _MICRO, arrays["rate"] / 1e4, arrays["cv"] / 1e4, int(gaps))
    if "prompt" not in arrays:
        raise TraceError(f"{path}: not a packed trace")
    prompt, output = arrays["prompt"].astype(np.int64), arrays["output"].astype(np.int64)
    if "arrival" not in arrays:
        return Lengths(name, prompt, output)
    blocks = None
    if "blocks" in arrays:
        blocks = Blocks(
            np.cumsum(arrays["blocks"], dtype=np.int64),
            np.cumsum(arrays["counts"], dtype=np.int64),
        )
    arrival = np.cumsum(arrays["arrival"]) / _MICRO
    return Trace(name, arrival, prompt, output, float(arrays["duration"][0]) / _MICRO, blocks)
