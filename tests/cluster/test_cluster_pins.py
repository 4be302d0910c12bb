"""What constraints.txt pins for images, and what for development alone."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from cluster import context

ROOT = Path(__file__).resolve().parents[2]


def test_pins_of_development_are_of_packages_that_no_image_needs() -> None:
    """Below the heading stands nothing that the extras of the images bring in, so that its changes rebuild none."""
    text = (ROOT / "constraints.txt").read_text()
    shipped, _, development = text.partition(context.DEVELOPMENT)
    pinned = {canonical(line.split("==")[0]) for line in development.splitlines()[1:] if line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    shipping = [extra for recipe in context.RECIPES for extra in recipe.extras]
    wanted = [*project["dependencies"], *(one for extra in shipping for one in extras[extra])]
    needed = closure(wanted)
    assert "torch" in needed and "pytest" in pinned
    assert needed & pinned == set()
    assert needed <= {canonical(line.split("==")[0]) for line in shipped.splitlines()}, "all that ships is pinned"


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(wanted: list[str]) -> set[str]:
    """The names of some requirements and of all that they bring in here, by the metadata of what is installed."""
    todo = [(Requirement(one), "") for one in wanted]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, _ = todo.pop()
        for extra in {"", *requirement.extras}:
            if (name := canonical(requirement.name), extra) in seen:
                continue
            seen.add((name, extra))
            inner = [Requirement(one) for one in metadata.requires(requirement.name) or ()]
            todo += [(one, "") for one in inner if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}
