"""Pages of mapped weight files: what loading has read is not kept beside the copies that were made of it."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_MADV_DONTNEED = 4


def drop_pages(folder: Path, maps: Path = Path("/proc/self/maps")) -> int:
    """Gives the pages of the folder's weight files back; tensors that are views of them read them again when used.

    Nothing may have been written to such a view. Returns the bytes mapped, 0 where the system has no such list.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    total = 0
    for start, end in _mappings({path.resolve() for path in folder.glob("*.safetensors")}, maps):
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED):
            log.warning("pages of weights were kept", extra={"error": os.strerror(ctypes.get_errno())})
            continue
        total += end - start
    return total


def _mappings(files: set[Path], maps: Path) -> Iterator[tuple[int, int]]:
    """Address ranges of this process where one of these files is mapped."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or Path(fields[5]) not in files:
            continue
        start, _, end = fields[0].partition("-")
        yield int(start, 16), int(end, 16)
