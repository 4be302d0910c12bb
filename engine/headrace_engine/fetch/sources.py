"""Where a model comes from: `builtin://`, `pvc://`, `hf://`. Parsing is pure; errors say what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from headrace_engine.core.failure import StartError

_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)


@dataclass(frozen=True)
class Builtin:
    """The model inside this package."""

    name: str


@dataclass(frozen=True)
class Volume:
    """A folder of a mounted claim."""

    claim: str
    path: PurePosixPath  # relative


@dataclass(frozen=True)
class Hub:
    """A repository of a model hub."""

    repository: str  # org/name
    revision: str  # branch, tag or commit


Source = Builtin | Volume | Hub


def parse(uri: str) -> Source:
    """Raises StartError SourceInvalid."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest:
        raise _invalid(uri, "write builtin://demo, pvc://CLAIM/path or hf://org/name@revision")
    if scheme == "builtin":
        if rest != "demo":
            raise _invalid(uri, "the only built-in model is builtin://demo")
        return Builtin(rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        parts = PurePosixPath(path)
        if not claim or ".." in parts.parts or parts.is_absolute():
            raise _invalid(uri, "write pvc://CLAIM/path, the path inside the volume without ..")
        return Volume(claim, parts)
    if scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match is None:
            raise _invalid(uri, "write hf://org/name or hf://org/name@revision")
        return Hub(match.group(1), match.group(2) or "main")
    raise _invalid(uri, f"the scheme {scheme} is not supported; supported: builtin, pvc, hf")


def _invalid(uri: str, message: str) -> StartError:
    return StartError("SourceInvalid", f"{uri[:300]}: {message}")
