"""What safetensors files say of themselves: names, shapes and sizes from their headers; contents are not read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.core.failure import StartError
from headrace_engine.models.digest import INDEX

SINGLE = "model.safetensors"
LONGEST = 255  # bytes of a file's name
MAX_HEADER = 100 << 20  # bytes, as safetensors bounds it
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class Tensor:
    """One tensor as its file's header describes it."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model folder by name. Raises StartError naming the file that is missing or broken."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise StartError("ModelIncomplete", f"neither {SINGLE} nor {INDEX} is there", SINGLE)
        return _read_header(folder, SINGLE)
    where = _read_index(folder)
    missing = sorted({file for file in where.values() if not (folder / file).exists()})
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise StartError("ModelIncomplete", f"{INDEX} names files that are missing: {names}", missing[0])
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        tensors.update(_read_header(folder, file))
    for name, file in where.items():
        if name not in tensors or tensors[name].file != file:
            raise StartError("ModelIncomplete", f"{file}: tensor {name} is missing, though {INDEX} names it", file)
    return tensors


def weights_bytes(folder: Path) -> int:
    """Bytes of the safetensors files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _read_index(folder: Path) -> dict[str, str]:
    """File by tensor name."""
    try:
        where = json.loads((folder / INDEX).read_bytes())["weight_map"]
        json.dumps(where, ensure_ascii=False).encode()  # a lone surrogate is in no name
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartError("ModelInvalid", f"{INDEX} cannot be read: {error!r}", INDEX) from error
    if not isinstance(where, dict) or not where or not all(_plain(file) for file in where.values()):
        raise StartError("ModelInvalid", f"{INDEX}: weight_map must give a file name by tensor{_odd(where)}", INDEX)
    return where


def _odd(where: object) -> str:
    """What is wrong with an index, as far as it is one entry."""
    if not isinstance(where, dict):
        return f", got {where!r:.100}"
    odd = next(((name, file) for name, file in where.items() if not _plain(file)), None)
    return ", is empty" if odd is None else f", {odd[0]!r:.100} has {odd[1]!r:.100}"


def _plain(name: object) -> bool:
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and name == Path(name).name
        and len(name.encode()) <= LONGEST
    )


def _read_header(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / name
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise _broken(name, f"has {size} bytes, too few for its header")
            header = json.loads(file.read(length))
    except OSError as error:
        raise _broken(name, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(name, f"has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(name, "has a header that is not an object")
    header.pop("__metadata__", None)
    ends = [_end(name, tensor, entry) for tensor, entry in header.items()]
    needed = 8 + length + max(ends, default=0)
    if size != needed:
        what = "is cut short" if size < needed else "has bytes after its end"
        raise StartError("ModelIncomplete", f"{name} {what}: {size} bytes, its header says {needed}", name)
    return {tensor: Tensor(name, entry["dtype"], tuple(entry["shape"])) for tensor, entry in header.items()}


def _end(file: str, name: str, entry: Any) -> int:
    """Where a tensor's bytes end, relative to the end of the header. Raises StartError if they do not fit its shape."""
    try:
        begin, end = entry["data_offsets"]
        count = DTYPES[entry["dtype"]]
        for length in entry["shape"]:
            count *= int(length)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _broken(file, f"has a malformed entry for tensor {name:.100}: {error!r:.100}") from error
    if not isinstance(begin, int) or not isinstance(end, int) or begin < 0 or end - begin != count:
        raise _broken(file, f"tensor {name}: {entry['data_offsets']} does not hold {count} bytes")
    return end


def _broken(file: str, message: str) -> StartError:
    return StartError("ModelInvalid", f"{file} {message}", file)
