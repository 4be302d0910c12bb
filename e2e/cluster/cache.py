"""Results kept by their inputs: `<root>/<kind>/<key>`, built once, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import say


def root() -> Path:
    """The cache folder: `$HEADRACE_CACHE`, or `~/.cache/headrace`."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")


def key_of(inputs: Mapping[str, str | bytes]) -> str:
    """16 hex digits that change with any name or content in `inputs`, and not with their order."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        content = value.encode() if isinstance(value, str) else value
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`; says so once if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(what, "another process is at it; waiting for its result")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def find(kind: str, key: str) -> Path | None:
    """The finished result, or None."""
    path = root() / kind / key
    return path if path.is_dir() else None


def ensure(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The result folder of `kind` for `key`; `make(folder)` fills it if it is not there yet.

    `make` works in a temporary folder on the same file system, which is renamed when it
    returns; a failed or interrupted build leaves no result.
    """
    target = root() / kind / key
    if target.is_dir():
        return target
    with locked(root() / kind / f"{key}.lock", kind):
        if target.is_dir():
            return target
        build = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=target.parent))
        build.chmod(0o755)
        try:
            make(build)
            build.rename(target)
        finally:
            shutil.rmtree(build, ignore_errors=True)
    return target
