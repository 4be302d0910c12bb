"""Weights in huge pages: a step reads every weight, and with pages of 4 KiB it waits for address translation."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)

SIZE = 2 << 20  # bytes of a huge page
_SMALL = mmap.PAGESIZE
_PRESENT = np.uint64(1 << 63)  # of an entry of pagemap
_LEAST_PRESENT = SIZE // _SMALL * 7 // 8  # small pages in memory: memory grows by at most an eighth of a huge page
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # the second is known from Linux 6.1 on


@dataclass(frozen=True)
class Process:
    """Where the system says what a process has mapped, and what of it is in memory."""

    maps: Path = Path("/proc/self/maps")
    pagemap: Path = Path("/proc/self/pagemap")


def collapse(process: Process = Process()) -> int:
    """Put this process's own memory into huge pages where it is dense; the bytes that are in them now.

    Content and addresses stay. Where the system has no huge pages to give, everything stays as it is; where it knows
    only the advice, it follows it in its own time.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    size, collapsed = ctypes.c_size_t(SIZE), 0
    for start in _dense(process):
        address = ctypes.c_void_p(start)
        if madvise(address, size, _MADV_HUGEPAGE):
            log.info("no huge pages", extra={"error": os.strerror(ctypes.get_errno())})
            break
        collapsed += SIZE * (madvise(address, size, _MADV_COLLAPSE) == 0)
    return collapsed


def _dense(process: Process) -> Iterator[int]:
    """Starts of the aligned ranges of a huge page's size that are nearly all in memory."""
    try:
        ranges = _private(process.maps.read_text())
        with process.pagemap.open("rb", buffering=0) as file:
            for start, end in ranges:
                file.seek(start // _SMALL * 8)
                entries = np.frombuffer(file.read((end - start) // _SMALL * 8), np.uint64)
                whole = entries[: len(entries) // (SIZE // _SMALL) * (SIZE // _SMALL)].reshape(-1, SIZE // _SMALL)
                present = ((whole & _PRESENT) != 0).sum(1)
                yield from (start + int(at) * SIZE for at in np.flatnonzero(present >= _LEAST_PRESENT))
    except OSError as error:
        log.info("memory is not put into huge pages", extra={"error": str(error)})


def _private(maps: str) -> list[tuple[int, int]]:
    """Writable memory without a file, cut to whole huge pages."""
    found = []
    for line in maps.splitlines():
        span, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights != "rw-p" or (name and not name[0].startswith(("[heap]", "[anon"))):
            continue
        first, _, last = span.partition("-")
        start, end = -(-int(first, 16) // SIZE) * SIZE, int(last, 16) // SIZE * SIZE
        if start < end:
            found.append((start, end))
    return found
