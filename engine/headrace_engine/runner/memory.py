"""How many pages of KV fit: from a fixed size, or from what is left of the memory limit after loading."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.core.failure import StartError
from headrace_engine.core.sequence import pages_for

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt
_MOST_KEPT = 32 * MIB  # of one allocation, the most that glibc takes from what it keeps
_MOST_TRIM = (1 << 31) - 1  # an int


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the pool is for."""

    page_bytes: int  # of one page over all layers
    max_tokens: int  # context length
    max_sequences: int


@dataclass(frozen=True, kw_only=True)
class Supply:
    """Where the pool's bytes come from: `fixed`, or `percent` of `limit` less `used` and `working`."""

    fixed: int | None
    percent: int
    limit: int  # bytes that this process and its siblings may use
    used: int  # of them, after loading
    working: int  # bytes that a step needs besides

    @property
    def bytes(self) -> int:
        """For the pool; may be negative."""
        return self.fixed if self.fixed is not None else self.limit * self.percent // 100 - self.used - self.working

    @property
    def arithmetic(self) -> str:
        """In words."""
        if self.fixed is not None:
            return f"a KV cache of {_size(self.fixed)} was asked for"
        return (
            f"{self.percent} % of {_size(self.limit)} less {_size(self.used)} in use after loading and "
            f"{_size(self.working)} for a step leave {_size(max(0, self.bytes))}"
        )

    @property
    def cure(self) -> str:
        """What gives the pool more."""
        return "give more memory" if self.fixed is None else "raise the KV cache size (--kv-cache-bytes)"


def pool_pages(demand: Demand, supply: Supply) -> int:
    """Pages of the pool, the dummy not counted: never more than all sequences at full length could use.

    Raises StartError with the arithmetic where not one full-length sequence fits, or a fixed size is not there.
    """
    one = pages_for(demand.max_tokens)
    fit = supply.bytes // demand.page_bytes - 1  # the dummy page
    if fit < one:
        raise StartError(
            "OutOfMemory",
            f"one sequence of {demand.max_tokens} tokens needs {one} pages of {_size(demand.page_bytes)} and a dummy "
            f"page, {_size((one + 1) * demand.page_bytes)}; {supply.arithmetic}: {max(0, fit)} pages. "
            f"Lower the context length (--max-model-len), or {supply.cure}",
        )
    pages = min(fit, one * demand.max_sequences)
    size, free = (pages + 1) * demand.page_bytes, supply.limit - supply.used
    if size > free:
        raise StartError(
            "OutOfMemory",
            f"{supply.arithmetic}, of which {demand.max_sequences} sequences of {demand.max_tokens} tokens can use "
            f"{_size(size)}; {_size(supply.limit)} less {_size(supply.used)} in use leave "
            f"{_size(max(0, free))}. Lower the KV cache size (--kv-cache-bytes), or give more memory",
        )
    return pages


def working_bytes(hidden: int, intermediate: int, vocab: int, batch_tokens: int, sequences: int, element: int) -> int:
    """A rough bound of a step's own memory: activations of the widest layer, logits and noise of all rows."""
    activations = batch_tokens * (6 * hidden + 3 * intermediate) * element
    return activations + sequences * vocab * 24 + 64 * MIB


def give_back() -> None:
    """Hand freed memory that the C library keeps for itself back to the system, so that it is not counted as used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def keep(count: int) -> bool:
    """From now on let the C library keep up to `count` freed bytes for the next step: memory that is handed back and
    taken again is zeroed by the system page by page. False where the library cannot be told.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    wanted = ((_M_MMAP_THRESHOLD, _MOST_KEPT), (_M_TRIM_THRESHOLD, min(count, _MOST_TRIM)))
    return tell is not None and all(tell(option, value) == 1 for option, value in wanted)


def memory_limit(root: Path = Path("/"), own: int | None = None) -> int:
    """Bytes this process may use: the smallest of its control group's limits (v2, v1) and the machine's memory.

    `own`: the machine's memory in bytes, where known.
    """
    limits = [own if own is not None else _meminfo(root, "MemTotal")]
    for file in _limit_files(root):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # v2 says "max" for none, v1 a huge number
            limits.append(int(text))
    return min(limits)


def used_of_limit(root: Path = Path("/")) -> int:
    """Bytes of the limit that are gone: this process's and its siblings' memory that cannot be reclaimed."""
    limit = memory_limit(root)
    total = _meminfo(root, "MemTotal")
    if limit >= total:
        return total - _meminfo(root, "MemAvailable")
    for folder, name, inactive in (
        (_v2(root), "memory.current", "inactive_file"),
        (_v1(root), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            current = int((folder / name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return max(0, current - int(stat.get(inactive, 0)))
    return total - _meminfo(root, "MemAvailable")


def _limit_files(root: Path) -> list[Path]:
    v2 = _v2(root)
    levels = [v2, *v2.parents]
    top = root / "sys/fs/cgroup"
    files = [level / "memory.max" for level in levels if level == top or top in level.parents]
    return [*files, _v1(root) / "memory.limit_in_bytes"]


def _v2(root: Path) -> Path:
    """This process's folder in the unified hierarchy; in a container that is the top."""
    return root / "sys/fs/cgroup" / _own_group(root, "").lstrip("/")


def _v1(root: Path) -> Path:
    folder = root / "sys/fs/cgroup/memory" / _own_group(root, "memory").lstrip("/")
    return folder if folder.exists() else root / "sys/fs/cgroup/memory"


def _own_group(root: Path, controller: str) -> str:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(",") and ".." not in path:
            return path
    return ""


def _meminfo(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {field}")


def _size(count: int) -> str:
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / KIB:.1f} KiB"
