"""What holds for all tests: how hypothesis makes examples, and no file that stays behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import examples

examples.load()


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
