"""What identifies a model's weights: a digest over all that the engine computes from. No torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INDEX = "model.safetensors.index.json"
PIECE_BYTES = 64 << 20  # hashed by one thread at a time
READ_BYTES = 1 << 20


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, sorted."""
    return sorted(folder.glob("*.safetensors"))


def weights_digest(folder: Path) -> str:
    """Hex sha256 over config.json, the shards' index, and each weight file's name, size and content.

    Two fine-tunes of one model differ in nothing else, so contents are read: at the disk's speed, or about 1 GB/s and
    CPU where the files are in memory. Files are hashed in pieces by as many threads as there are CPUs; the digest is
    over the pieces' digests. Raises OSError.
    """
    h = hashlib.sha256(b"headrace.weights.v2")
    for part in _identity(folder):
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.hexdigest()


def _identity(folder: Path) -> Iterator[bytes]:
    for name in ("config.json", INDEX):
        path = folder / name
        yield path.read_bytes() if path.exists() else b""
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))), "digest") as threads:
        for path in weight_files(folder):
            size = path.stat().st_size
            yield f"{path.name} {size}".encode()
            pieces = range(0, size, PIECE_BYTES)
            yield from threads.map(_piece, [path] * len(pieces), pieces)


def _piece(path: Path, at: int) -> bytes:
    """Sha256 of one piece."""
    h = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        left = PIECE_BYTES
        while left > 0 and (data := file.read(min(left, READ_BYTES))):
            h.update(data)  # lets the lock go
            left -= len(data)
    return h.digest()
