"""What an image is built from: the files its Dockerfile reads, and nothing else."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 315532800  # 1980-01-01, the modification time of every staged file, so that equal content is equal
IGNORED = ("__pycache__", ".pyc")
DEVELOPMENT = "# For development alone"  # the heading of constraints.txt below which no image looks


@dataclass(frozen=True)
class Recipe:
    """An image of the project."""

    name: str  # headrace/NAME
    dockerfile: str
    folders: tuple[str, ...]  # code, copied whole
    extras: tuple[str, ...]  # of pyproject.toml
    usual: str  # how long a cold build takes on two cores


CONTROL_PLANE = Recipe(
    "control-plane",
    "operator/Dockerfile",
    ("operator/headrace", "engine/headrace_wire"),
    ("operator", "gateway"),
    "40 s",
)
ENGINE = Recipe("engine", "engine/Dockerfile", ("engine/headrace_wire", "engine/headrace_engine"), ("engine",), "3 min")
RECIPES = (CONTROL_PLANE, ENGINE)


def files(recipe: Recipe, root: Path = ROOT) -> dict[str, bytes]:
    """The build context: path to content. pyproject.toml and constraints.txt are cut down to what the Dockerfile reads

    of them, so that a new lint rule or test tool does not cost a new layer of dependencies.
    """
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in recipe.folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and not any(word in str(path) for word in IGNORED)
    }
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found["pyproject.toml"] = project_table(project, recipe.extras).encode()
    found["constraints.txt"] = (root / "constraints.txt").read_text().split(DEVELOPMENT)[0].encode()
    found["Dockerfile"] = (root / recipe.dockerfile).read_bytes()
    return found


def project_table(project: dict[str, Any], extras: tuple[str, ...]) -> str:
    """A pyproject.toml with nothing but the requirements of some extras (JSON's strings and lists are TOML's)."""
    lines = [
        "[project]",
        f"dependencies = {json.dumps(project['dependencies'])}",
        "",
        "[project.optional-dependencies]",
    ]
    optional = project["optional-dependencies"]
    return "\n".join([*lines, *(f"{extra} = {json.dumps(optional[extra])}" for extra in extras)]) + "\n"


def stage(content: dict[str, bytes], folder: Path) -> None:
    """Write a build context; equal content gives equal files, times and modes included."""
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (EPOCH, EPOCH))
        if path.is_dir():
            path.chmod(0o755)
