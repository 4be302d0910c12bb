"""The Python environment: third-party packages once per machine, a thin `.venv` per checkout on top of them."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import cache
from cluster.context import ROOT
from cluster.errors import ClusterError
from cluster.process import follow, run, succeeds
from cluster.progress import step

SOURCES = ("operator", "engine", "e2e")  # folders of a checkout whose packages can be imported
SCRIPTS = {  # what a checkout's .venv/bin holds: the call that each makes
    "headrace": "from headrace.cli.main import main",
    "headrace-engine": "from headrace_engine.main import main",
    "pytest": "from pytest import main",
    "mypy": "from mypy.__main__ import console_entry as main",
    "lint-imports": "from importlinter.cli import lint_imports_command as main",
}
PROGRAMS = ("ruff",)  # packages whose program is no Python


@dataclass(frozen=True)
class Requirements:
    """What the environment holds: requirements of all extras, at the versions that constraints.txt pins."""

    wanted: tuple[str, ...]
    constraints: Path

    @staticmethod
    def of(root: Path) -> Requirements:
        """Those of a checkout."""
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"].values()
        wanted = {*project["dependencies"], *(one for extra in extras for one in extra)}
        return Requirements(tuple(sorted(wanted)), root / "constraints.txt")

    def key(self, python: str) -> str:
        """The cache key: it changes with the requirements, the pins and the interpreter."""
        inputs = {"wanted": "\n".join(self.wanted), "constraints": self.constraints.read_text(), "python": python}
        return cache.key_of(inputs)


def ensure(root: Path = ROOT) -> Path:
    """The checkout's `.venv`, made or renewed if its packages have changed."""
    packages = site_packages(third_party(Requirements.of(root)))
    here = root / ".venv"
    stamp = f"{packages}\n{base_python()}\n{render_all(root)}"
    mark = here / "made-for"
    if not mark.exists() or mark.read_text() != stamp:
        with cache.locked(cache.root() / "venv" / f"checkout-{cache.key_of({'root': str(root)})}.lock", "venv"):
            _make_thin(root, here, packages)
            mark.write_text(stamp)
    return here


def third_party(requirements: Requirements) -> Path:
    """The shared environment, installed if it is not in the cache."""

    def install(folder: Path) -> None:
        requirement_file = folder / "requirements.txt"
        requirement_file.write_text("\n".join(requirements.wanted) + "\n")
        with step("venv", "installing Python packages, torch (5 GB unpacked) among them", "2 min") as running:
            _new(folder)
            command = [
                *(base_python(), "-m", "pip", "--python", str(folder / "bin" / "python"), "install"),
                *("--progress-bar", "off", "--disable-pip-version-check", "--root-user-action", "ignore"),
                *("--constraint", str(requirements.constraints), "--requirement", str(requirement_file)),
            ]
            _require_pip()
            follow(command, lambda line: setattr(running, "detail", line.strip()[:80]))

    return cache.ensure("venv", requirements.key(interpreter()), install)


def base_python() -> str:
    """The Python that environments are made from: never the one of an environment, which may be `.venv` itself.

    By its real path: under another of its names `.venv` would be made anew below the programs that run from it.
    """
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def interpreter() -> str:
    """What tells this Python from others, as far as packages care."""
    return f"{sys.version} {sys.base_prefix}"


def site_packages(environment: Path) -> Path:
    """Where an environment keeps its packages."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def render_all(root: Path) -> str:
    """All that `.venv` is made of besides the packages, as text: when it changes, `.venv` is made anew."""
    return "\n".join([path_file(root), *(script(root, call) for call in SCRIPTS.values())])


def path_file(root: Path) -> str:
    """The .pth that makes a checkout's own packages importable."""
    return "".join(f"{root / folder}\n" for folder in SOURCES)


def script(root: Path, call: str) -> str:
    """A console script of a checkout; a process that it spawns reads it too, and must not run it again."""
    head = f"#!{root / '.venv' / 'bin' / 'python'}\nimport sys\n{call}\n"
    return head + 'if __name__ == "__main__":\n    sys.exit(main())\n'


def _make_thin(root: Path, here: Path, packages: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    _new(here)
    own = site_packages(here)
    # `addsitedir` also obeys the .pth files inside of the shared packages.
    (own / "packages.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    (own / "checkout.pth").write_text(path_file(root))
    for name, call in SCRIPTS.items():
        file = here / "bin" / name
        file.write_text(script(root, call))
        file.chmod(0o755)
    for name in PROGRAMS:
        (here / "bin" / name).symlink_to(packages.parents[2] / "bin" / name)


def link_tools(root: Path, tools: Mapping[str, Path]) -> None:
    """Let a checkout's `.venv/bin` hold programs under names of their own, where there is a `.venv`."""
    folder = root / ".venv" / "bin"
    for name, program in tools.items() if folder.is_dir() else ():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(program)


def _new(folder: Path) -> None:
    run([base_python(), "-m", "venv", "--without-pip", folder])


def _require_pip() -> None:
    if not succeeds([base_python(), "-m", "pip", "--version"]):
        raise ClusterError("python3 has no pip: run `apt-get install python3-pip`, or setup without --only")
