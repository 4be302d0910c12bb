"""The shape of the repository: what must not be there, and how big things may grow."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = {
    "pyproject.toml",
    "README.md",
    "Makefile",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "constraints.txt",
    "operator",
    "engine",
    "crds",
    "charts",
    "tests",
    "e2e",
    "docs",
    "benchmarks",
}
MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 45
MAX_KERNEL_LINES = 65  # a GPU kernel is one function, and names each pointer and stride


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def python_files() -> list[str]:
    return [name for name in tracked() if name.endswith(".py")]


@pytest.mark.parametrize("folder", ["operator", "engine", "tests", "e2e"])
def test_folders_that_must_not_be_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), f"{folder}/__init__.py would hide or shadow other modules"


def test_top_level_holds_only_what_is_named() -> None:
    found = {name.split("/")[0] for name in tracked()}
    assert {name for name in found if not name.startswith(".")} <= TOP


def test_files_and_functions_stay_readable() -> None:
    large = []
    for name in python_files():
        text = (ROOT / name).read_text()
        if text.count("\n") > MAX_FILE_LINES:
            large.append(f"{name}: {text.count(chr(10))} lines")
        if "test_" in Path(name).name:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno
                kernel = any(ast.unparse(decorator).endswith("triton.jit") for decorator in node.decorator_list)
                if size > (MAX_KERNEL_LINES if kernel else MAX_FUNCTION_LINES):
                    large.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert not large, "\n".join(large)


def test_test_files_have_unique_names() -> None:
    names = [Path(name).name for name in python_files() if Path(name).name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_no_large_file_is_committed() -> None:
    large = [n for n in tracked() if (ROOT / n).stat().st_size > 1_000_000 and not n.endswith(".safetensors")]
    assert not large


def test_constraints_name_no_host() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert "@" not in text
