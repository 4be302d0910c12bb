"""What holds for all tests: examples of hypothesis, which of them share a worker, and no file that stays behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import examples

examples.load()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers: a file's tests share one, with what they start; those end to end share one cluster.

    By the tests' ids: marks of groups do not reach the scheduler, since pytest makes ids that no plugin can change.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "e2e" if file.startswith("e2e/") else file

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def scratch_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where temporary files of tests lie, and of the processes that they start, killed ones too; gone at the end."""
    folder = tmp_path_factory.mktemp("scratch")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _scratch(scratch_home: Path) -> Iterator[None]:
    """Not for the whole session: the cluster of the end-to-end tests may be kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch_home))
        patch.setattr(tempfile, "tempdir", str(scratch_home))
        yield
