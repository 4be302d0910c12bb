"""Weights in huge pages: which memory is taken, and that its content stays; freed memory is kept."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace_engine.runner import huge

SMALL = huge.SIZE // mmap.PAGESIZE  # small pages of a huge one
BASE = 64 * huge.SIZE


def process(folder: Path, line: str, present: list[int]) -> huge.Process:
    """A process with one mapping; `present`: small pages in memory of each huge page's range from BASE on."""
    (folder / "maps").write_text(line)
    entries = np.zeros((BASE // huge.SIZE + len(present), SMALL), np.uint64)
    for at, count in enumerate(present):
        entries[BASE // huge.SIZE + at, :count] = 1 << 63
    entries.tofile(folder / "pagemap")
    return huge.Process(folder / "maps", folder / "pagemap")


def span(first: int, last: int, rights: str = "rw-p", name: str = "") -> str:
    return f"{BASE + first:x}-{BASE + last:x} {rights} 00000000 00:00 0 {name}\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(span(0, 3 * huge.SIZE), [0, 1], id="dense-ranges-alone"),
        pytest.param(span(0, 3 * huge.SIZE, name="[heap]"), [0, 1], id="heap"),
        pytest.param(span(0, 3 * huge.SIZE, name="[anon: malloc]"), [0, 1], id="named"),
        pytest.param(span(4096, 3 * huge.SIZE - 4096), [1], id="cut-to-whole-ones"),
        pytest.param(span(4096, huge.SIZE), [], id="less-than-one"),
        pytest.param(span(0, 3 * huge.SIZE, name="/lib/libtorch.so"), [], id="file"),
        pytest.param(span(0, 3 * huge.SIZE, name="[stack]"), [], id="stack"),
        pytest.param(span(0, 3 * huge.SIZE, rights="r--p"), [], id="read-only"),
        pytest.param(span(0, 3 * huge.SIZE, rights="rw-s"), [], id="shared"),
    ],
)
def test_only_own_dense_memory_is_taken(tmp_path: Path, line: str, found: list[int]) -> None:
    starts = list(huge._dense(process(tmp_path, line, [SMALL, SMALL - SMALL // 8, SMALL // 2])))
    assert starts == [BASE + at * huge.SIZE for at in found]


def test_content_and_addresses_stay() -> None:
    weights = np.arange(8 * huge.SIZE // 8)
    address = weights.ctypes.data
    collapsed = huge.collapse()
    assert collapsed % huge.SIZE == 0
    assert weights.ctypes.data == address
    assert (weights == np.arange(len(weights))).all()


def test_a_system_that_does_not_say_what_is_mapped_changes_nothing(tmp_path: Path) -> None:
    assert huge.collapse(huge.Process(tmp_path / "none", tmp_path / "none")) == 0


def test_freed_memory_is_kept_for_the_next_step() -> None:
    """In a process of its own: the setting cannot be taken back."""
    code = (
        "import resource, numpy as np; from headrace_engine.runner import memory\n"
        "def touched():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    np.ones(16 << 20, np.uint8)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "told = memory.keep(64 << 20); touched()\n"
        "print(told, touched())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    told, faults = done.stdout.split()
    assert told == "True"
    assert int(faults) < (16 << 20) // mmap.PAGESIZE // 8
