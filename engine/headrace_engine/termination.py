"""The termination log: what a container says to Kubernetes when it ends, as JSON."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace_wire.shape import Termination

DEFAULT = "/dev/termination-log"
MAX_BYTES = 4096  # that Kubernetes keeps
_MAX_MESSAGE = 2000  # characters


def write(termination: Termination) -> None:
    """Writes to `HEADRACE_TERMINATION_LOG`, else to the default place; does nothing where its folder is absent."""
    path = Path(os.environ.get("HEADRACE_TERMINATION_LOG") or DEFAULT)
    if not path.parent.is_dir():
        return
    message, file = (_plain(text) for text in (termination.message, termination.file))
    short = msgspec.structs.replace(termination, message=message[:_MAX_MESSAGE], file=file)
    data = msgspec.json.encode(short)
    if len(data) > MAX_BYTES:
        data = msgspec.json.encode(msgspec.structs.replace(short, message=short.message[:500], file=short.file[:200]))
    try:
        path.write_bytes(data)
    except OSError:
        return  # not writable outside a container: there is nobody to tell


def _plain(text: str) -> str:
    """Without lone surrogates, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
