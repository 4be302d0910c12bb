"""Real engines that the files of a worker share: a start costs seconds of CPU, most of it torch's import.

Who uses one leaves it idle, and neither stops nor kills anything of it; what ends an engine starts one of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.background import Background
from headrace.testing.engine_process import EngineProcess

# Before torch is loaded: these models are so small that a second thread only waits, and takes a neighbour's CPU for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def shared(home: Path, *arguments: str) -> Iterator[EngineProcess]:
    """An engine of the built-in model that serves until the last test has ended; its temporary files lie in `home`."""
    env = {"TMPDIR": str(home), "OMP_WAIT_POLICY": None}
    with Background() as background:
        yield background.enter(EngineProcess("builtin://demo", "--threads", "1", *arguments, env=env))


@pytest.fixture(scope="session")
def demo_engine(scratch_home: Path) -> Iterator[EngineProcess]:
    """Serves `demo` in its whole context of 2,048 tokens, four sequences at a time."""
    with shared(scratch_home, "--max-sequences", "4", "--kv-cache-bytes", "64Mi") as engine:
        yield engine


@pytest.fixture(scope="session")
def short_engine(scratch_home: Path) -> Iterator[EngineProcess]:
    """Serves `demo` in a context of 96 tokens, for bodies made by chance that ask for as much as there is."""
    limits = ("--max-sequences", "8", "--max-model-len", "96", "--kv-cache-bytes", "16Mi")
    with shared(scratch_home, *limits) as engine:
        yield engine


@pytest.fixture(scope="session")
def protocol_engine(scratch_home: Path) -> Iterator[EngineProcess]:
    """Serves `m` in a context of 512 tokens, two sequences at a time, beside the fake engine that does the same."""
    limits = ("--max-sequences", "2", "--max-model-len", "512", "--kv-cache-bytes", "64Mi")
    with shared(scratch_home, "--served-model-name", "m", *limits) as engine:
        yield engine
