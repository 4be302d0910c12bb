"""The Python environment of a checkout."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import venv
from cluster.venv import Requirements


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "constraints.txt").write_text("b==1\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["b"]\n[project.optional-dependencies]\nx = ["c>=2", "b"]\ndev = ["a"]\n'
        "[tool.other]\nx = 1\n"
    )
    for folder in venv.SOURCES:
        (tmp_path / folder / f"of_{folder}").mkdir(parents=True)
        (tmp_path / folder / f"of_{folder}" / "__init__.py").write_text(f"name = {folder!r}\n")
    return tmp_path


def test_requirements_are_those_of_all_extras_each_once(checkout: Path) -> None:
    assert Requirements.of(checkout).wanted == ("a", "b", "c>=2")


def test_key_changes_with_requirements_pins_and_interpreter(checkout: Path, tmp_path: Path) -> None:
    first = Requirements.of(checkout)
    keys = {first.key("3.11"), first.key("3.12"), replace(first, wanted=("a",)).key("3.11")}
    (checkout / "constraints.txt").write_text("b==2\n")
    keys.add(Requirements.of(checkout).key("3.11"))
    assert len(keys) == 4


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared environment with one package and one .pth file, in place of the installed one."""
    environment = tmp_path / "shared"
    folder = venv.site_packages(environment)
    (folder / "third_party").mkdir(parents=True)
    (folder / "third_party" / "__init__.py").write_text("name = 'third'\n")
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / "by_path.py").write_text("name = 'further'\n")
    (folder / "further.pth").write_text(f"{tmp_path / 'further'}\n")
    monkeypatch.setattr(venv, "third_party", lambda requirements: environment)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return environment


def test_python_under_another_of_its_names_leaves_the_environment_alone(
    checkout: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Path(venv.base_python())
    assert not python.is_symlink()
    mark = venv.ensure(checkout) / "mark"
    mark.touch()
    (tmp_path / "python3").symlink_to(python)
    monkeypatch.setattr(sys, "_base_executable", str(tmp_path / "python3"))
    venv.ensure(checkout)
    assert mark.exists()


def test_checkout_imports_shared_packages_and_its_own(checkout: Path, packages: Path) -> None:
    python = venv.ensure(checkout) / "bin" / "python"
    code = "import third_party, by_path, of_operator, of_engine, of_e2e; print(third_party.name, of_engine.name)"
    told = subprocess.run([python, "-c", code], cwd="/", text=True, capture_output=True, check=False)
    assert told.stdout == "third engine\n", told.stderr


def test_scripts_run_the_checkout(checkout: Path, packages: Path) -> None:
    cli = checkout / "operator" / "headrace" / "cli"
    cli.mkdir(parents=True)
    (cli / "__init__.py").write_text("")
    (cli / "main.py").write_text("import sys\ndef main() -> int:\n    print(sys.argv[1:])\n    return 3\n")
    done = subprocess.run(
        [venv.ensure(checkout) / "bin" / "headrace", "plan"], cwd="/", text=True, capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == ("['plan']\n", 3)


def test_environment_is_made_once_and_anew_when_packages_change(
    checkout: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = venv.ensure(checkout) / "bin" / "mark"
    mark.write_text("")
    venv.ensure(checkout)
    assert mark.exists()
    other = packages.with_name("other")
    packages.rename(other)
    monkeypatch.setattr(venv, "third_party", lambda requirements: other)
    venv.ensure(checkout)
    assert not mark.exists()


def test_tools_are_linked_where_there_is_an_environment(tmp_path: Path) -> None:
    venv.link_tools(tmp_path, {"kubectl": tmp_path / "kube"})
    assert not (tmp_path / ".venv").exists()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for version in ("old", "new"):
        venv.link_tools(tmp_path, {"kubectl": tmp_path / version / "kube"})
    assert (tmp_path / ".venv" / "bin" / "kubectl").readlink() == tmp_path / "new" / "kube"
