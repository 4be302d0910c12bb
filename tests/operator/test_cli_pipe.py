"""`headrace ... | head`: a reader that leaves ends the command quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cli.main import main

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "-f", "charts/samples/two-nodes/exercise.yaml", "--config", "charts/samples/two-nodes/llama-70b-shape")


EXPLAIN = ("explain", "model", "demo", "-f", "charts/samples/model.yaml")


def ended(command: Sequence[str], unbuffered: str, stdout: int | None = None) -> tuple[int, str]:
    """Exit status and stderr of a command, played in the root of the repository."""
    done = subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "operator:engine", "PYTHONUNBUFFERED": unbuffered},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("command", [PLAN, EXPLAIN], ids=["plan", "explain"])
def test_reader_that_left_ends_the_command_quietly(command: tuple[str, ...], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        found = ended([sys.executable, "-m", "headrace.cli", *command], unbuffered, writing)
    finally:
        os.close(writing)
    assert found == (141, "")


def test_broken_pipe_that_is_not_the_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(arguments: object) -> int:
        raise BrokenPipeError("a socket")

    monkeypatch.setattr("headrace.cli.key.run", lost)
    with pytest.raises(BrokenPipeError, match="a socket"):
        main(["key", "new", "--name", "x"])


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        pytest.param(">/dev/full", 74, "headrace: the output cannot be written: No space left on device\n", id="full"),
        pytest.param(">&-", 0, "", id="closed"),
    ],
)
def test_output_that_goes_nowhere_is_no_traceback(redirection: str, status: int, said: str, unbuffered: str) -> None:
    command = ["sh", "-c", f'exec "$0" -m headrace.cli "$@" {redirection}', sys.executable, *EXPLAIN]
    assert ended(command, unbuffered) == (status, said)


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["gateway", "--namespaces", "a", "--id", "x"], "uvloop", "gateway"),
        (["plan", "-f", "charts/samples/model.yaml"], "yaml", "operator"),
    ],
    ids=["gateway", "plan"],
)
def test_command_whose_package_is_not_installed_says_what_to_install(
    command: list[str], package: str, extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\nfrom headrace.cli.main import main; sys.exit(main({command!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"headrace: the package {package} is missing: install headrace[{extra}]\n"
