"""What lies between the matrix products of a layer, in bfloat16: one call each, compiled by numba for the CPU at hand.

A step streams all weights through the caches, so that the code of what comes between is read from memory again: a norm,
six operations in torch, takes 10 µs, but 60 after a product. Each function here computes a row on its own, in an order
that follows from the row's size alone: what a row gives is the same to the bit beside any others. One thread does it:
beside a few cores' products, which take a hundred times as long, that is little.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import carray, cfunc, config, types
from numba.extending import register_jitable
from torch import Tensor

log = logging.getLogger(__name__)

BF16, F32, I64 = types.CPointer(types.uint16), types.CPointer(types.float32), types.CPointer(types.int64)
COUNT, FLOAT = types.int64, types.float32
C_TYPES: dict[Any, Any] = dict.fromkeys((BF16, F32, I64), ctypes.c_void_p)
C_TYPES |= {COUNT: ctypes.c_int64, FLOAT: ctypes.c_float, types.void: None}

_SIXTEEN, _HALF, _LAST = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)
_NAN = np.uint16(0x7FC0)
_SIZE, _INFINITE = np.uint16(0x7FFF), np.uint16(0x7F80)  # bits of a bfloat16 without its sign; least that is no number


@register_jitable
def _wide(bits: Any) -> Any:
    """A bfloat16 as a float."""
    return np.uint32(np.uint32(bits) << _SIXTEEN).view(np.float32)


@register_jitable
def _narrow(x: Any) -> Any:
    """The bfloat16 nearest to a float, the even one of two."""
    bits = np.float32(x).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> _SIXTEEN) & _LAST)
    return np.uint16(np.uint32(bits + np.uint32(_HALF + odd)) >> _SIXTEEN) if x == x else _NAN


def _norm(x_at: Any, weight_at: Any, out_at: Any, rows: Any, size: Any, least: Any) -> None:
    x, weight, out = carray(x_at, (rows, size)), carray(weight_at, size), carray(out_at, (rows, size))
    for row in range(rows):
        total = np.float32(0)
        for i in range(size):
            value = _wide(x[row, i])
            total += value * value
        scale = np.float32(1) / np.sqrt(total + least)
        for i in range(size):
            out[row, i] = _narrow(_wide(x[row, i]) * scale * weight[i])


def _rotate(x_at: Any, turns_at: Any, rows: Any, all_heads: Any, heads: Any, half: Any) -> None:
    x, turns = carray(x_at, (rows, all_heads, 2, half)), carray(turns_at, (rows, 2, half))
    for row in range(rows):
        for head in range(heads):
            for i in range(half):
                a, b = _wide(x[row, head, 0, i]), _wide(x[row, head, 1, i])
                x[row, head, 0, i] = _narrow(a * turns[row, 0, i] - b * turns[row, 1, i])
                x[row, head, 1, i] = _narrow(b * turns[row, 0, i] + a * turns[row, 1, i])


def _norm_rotate(
    x_at: Any, weight_at: Any, turns_at: Any, rows: Any, all_heads: Any, heads: Any, half: Any, least: Any
) -> None:
    x, turns = carray(x_at, (rows, all_heads, 2, half)), carray(turns_at, (rows, 2, half))
    weight = carray(weight_at, (heads, 2, half))
    for row in range(rows):
        for head in range(heads):
            total = np.float32(0)
            for part in range(2):
                for i in range(half):
                    value = _wide(x[row, head, part, i])
                    total += value * value
            scale = np.float32(1) / np.sqrt(total + least)
            for i in range(half):
                a = _wide(x[row, head, 0, i]) * scale * weight[head, 0, i]
                b = _wide(x[row, head, 1, i]) * scale * weight[head, 1, i]
                x[row, head, 0, i] = _narrow(a * turns[row, 0, i] - b * turns[row, 1, i])
                x[row, head, 1, i] = _narrow(b * turns[row, 0, i] + a * turns[row, 1, i])


def _scatter(x_at: Any, slots_at: Any, out_at: Any, rows: Any, stride: Any, heads: Any, size: Any, slots: Any) -> Any:
    """How many slots there are not, else minus how many rows are not finite; those rows are left out."""
    x, to, out = carray(x_at, (rows, stride)), carray(slots_at, rows), carray(out_at, (heads, slots, size))
    outside = damaged = 0
    for row in range(rows):
        slot = to[row]
        if slot < 0 or slot >= slots:
            outside += 1
            continue
        largest = np.uint16(0)
        for i in range(heads * size):
            largest = max(largest, np.uint16(x[row, i] & _SIZE))
        if largest >= _INFINITE:
            damaged += 1
            continue
        for head in range(heads):
            for i in range(size):
                out[head, slot, i] = x[row, head * size + i]
    return outside if outside else -damaged


@cache
def _compiled(function: Callable[..., Any], *takes: Any, gives: Any = types.void) -> Callable[..., Any]:
    """Called with addresses and numbers. The code is kept in the user's cache for the next start, if it can be."""
    options = {"fastmath": {"reassoc"}, "error_model": "numpy"}  # sums in vectors; 1 / 0 is infinite
    signature = gives(*takes)
    try:
        config.CACHE_DIR = _cache_folder()
        kernel = cfunc(signature, cache=True, **options)(function)
    except Exception:  # nowhere to keep it, no room, a file that is damaged: whatever there is
        log.info("compiled kernels are not kept", exc_info=True)
        kernel = cfunc(signature, **options)(function)
    call = ctypes.PYFUNCTYPE(C_TYPES[gives], *(C_TYPES[kind] for kind in takes))(kernel.address)
    call.kernel = kernel  # type: ignore[attr-defined]  # the code lives as long as this does
    return call


@cache
def _cache_folder() -> str:
    """One for each kind of CPU and each version of this file: numba's own keys do not keep two writers apart. Raises
    RuntimeError without a home, OSError where it cannot be written."""
    source = hashlib.sha256(Path(__file__).read_bytes())
    source.update(f"{numba.__version__} {get_host_cpu_name()} {get_host_cpu_features().flatten()}".encode())
    folder = Path.home() / ".cache" / "headrace" / "kernels" / source.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written")
    return str(folder)


class Norm:
    """x / rms(x) * weight over the last dimension: bfloat16 [rows, size] to the same."""

    def __init__(self, weight: Tensor, eps: float):
        """`weight` [size]."""
        size = len(weight)
        self._weight, self._size, self._least = _rooted(weight), size, size * eps
        self._weight_at = self._weight.data_ptr()
        self._call = _compiled(_norm, BF16, F32, BF16, COUNT, COUNT, FLOAT)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        rows, size = x.shape
        if size != self._size:
            raise ValueError(f"rows of {size} for a weight of {self._size}")
        out = torch.empty_like(x)
        self._call(x.data_ptr(), self._weight_at, out.data_ptr(), rows, size, self._least)
        return out


class Rotate:
    """Rotates the first heads, dimension i with i + size / 2, in place."""

    def __init__(self, heads: int, size: int):
        self._heads, self._size = heads, size
        self._call = _compiled(_rotate, BF16, F32, *[COUNT] * 4)

    def __call__(self, x: Tensor, turns: Tensor) -> None:
        """x bfloat16 [rows, all heads * size], turns fp32 [rows, 2, size / 2]: cosines, sines; both contiguous."""
        rows, width = x.shape
        self._call(x.data_ptr(), turns.data_ptr(), rows, width // self._size, self._heads, self._size // 2)


class NormRotate:
    """Norms the first heads, each with a weight of its own, then rotates them, in place."""

    def __init__(self, weight: Tensor, eps: float):
        """`weight` [heads, size]."""
        (self._heads, self._size), self._weight = weight.shape, _rooted(weight)
        self._weight_at, self._least = self._weight.data_ptr(), self._size * eps
        self._call = _compiled(_norm_rotate, BF16, F32, F32, *[COUNT] * 4, FLOAT)

    def __call__(self, x: Tensor, turns: Tensor) -> None:
        """As in Rotate."""
        (rows, width), heads, half = x.shape, self._heads, self._size // 2
        self._call(x.data_ptr(), self._weight_at, turns.data_ptr(), rows, width // self._size, heads, half, self._least)


class Scatter:
    """Copies heads of each row to the row's slot. What is not finite stays outside: calls read more than a row sees,
    and hide it by an infinite term, which hides no NaN."""

    def __init__(self) -> None:
        self._call = _compiled(_scatter, BF16, I64, BF16, *[COUNT] * 5, gives=COUNT)

    def __call__(self, x: Tensor, first: int, slots: Tensor, out: Tensor) -> None:
        """Heads from `first` on of x, bfloat16 [rows, heads, size], to out [heads, slots, size] at `slots`, int64
        [rows]; all contiguous. Raises IndexError, ArithmeticError."""
        rows, heads, size = x.shape
        at = x.data_ptr() + first * size * x.itemsize
        wrong = self._call(at, slots.data_ptr(), out.data_ptr(), rows, heads * size, len(out), size, out.shape[1])
        if wrong < 0:
            raise ArithmeticError(f"keys or values of {-wrong} of {rows} tokens are not finite")
        if wrong:
            raise IndexError(f"slots from {int(slots.min())} to {int(slots.max())} of {out.shape[1]}")


def _rooted(weight: Tensor) -> Tensor:
    """fp32, times the root of its last dimension's size: what is divided by a norm instead of a root mean square."""
    return weight.to(torch.float32, copy=True).mul_(weight.shape[-1] ** 0.5).contiguous()
