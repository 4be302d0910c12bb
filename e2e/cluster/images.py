"""Building the project's images with buildah, into the machine's storage."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cluster import baseimage, cache, context, pipconfig
from cluster.context import Recipe
from cluster.errors import require_root, require_tools
from cluster.process import follow
from cluster.progress import step
from cluster.storage import Storage

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
KEPT = 2  # versions of each image that stay; two checkouts may be at work


def tag(recipe: Recipe, base: str) -> str:
    """The name of a recipe's image: its tag is a hash of everything that goes in."""
    return f"headrace/{recipe.name}:{cache.key_of(context.files(recipe) | {'base': base.encode()})}"


def build(recipe: Recipe) -> str:
    """The name of the image, built and put into the storage if it is not there."""
    storage = Storage.default()
    name = tag(recipe, baseimage.name())
    if storage.has(name):
        return name
    require_root("building images")
    require_tools("buildah")
    base = baseimage.ensure(storage)
    with cache.locked(cache.root() / "build.lock", recipe.name):
        if not storage.has(name):
            follow(storage.buildah("rm", "--all"), lambda line: None)  # what an interrupted build left
            usual = f"{recipe.usual}, seconds if only code has changed"
            with step(recipe.name, f"building {name}", usual) as running:
                _bud(storage, recipe, (name, base), lambda line: setattr(running, "detail", line[:80]))
            _prune(storage, recipe)
    return name


def build_all() -> dict[str, str]:
    """All images of the project: recipe name to image name."""
    return {recipe.name: build(recipe) for recipe in context.RECIPES}


def current() -> dict[str, str]:
    """The names that `build_all` gives for the present state of the files, built or not."""
    return {recipe.name: tag(recipe, baseimage.name()) for recipe in context.RECIPES}


def drop_old(storage: Storage) -> list[str]:
    """Drop the images that this checkout would not build now, and what is left of builds; the names dropped."""
    if not storage.exists():
        return []
    needed = {*current().values(), baseimage.name()}
    with cache.locked(cache.root() / "build.lock", "images"):
        old = [name for name in storage.names() if name not in needed]
        for name in old:
            storage.remove(name)
        storage.remove_unnamed()
    return old


def _bud(storage: Storage, recipe: Recipe, names: tuple[str, str], on_line: Callable[[str], None]) -> None:
    """Run the Dockerfile for an image on a base (`names`).

    The machine's certificates and pip settings are mounted, so no layer holds them.
    """
    name, base = names
    with tempfile.TemporaryDirectory(prefix="headrace-build-") as scratch:
        folder = Path(scratch) / "context"
        context.stage(context.files(recipe), folder)
        settings = pipconfig.write(Path(scratch) / "pip.conf", pipconfig.machine(CERTIFICATES))
        command = [
            *storage.buildah("bud", "--layers", "--force-rm", "--network", "host", "--pull-never", "--format", "oci"),
            *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--volume", f"{settings}:/etc/pip.conf:ro"),
            *("--build-arg", f"BASE=localhost/{base}"),
            *("--tag", f"localhost/{name}", "--file", str(folder / "Dockerfile"), str(folder)),
        ]
        follow(command, on_line, env={**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": scratch})


def _prune(storage: Storage, recipe: Recipe) -> None:
    """Drop all but the newest versions of an image."""
    versions = [name for name in storage.names() if name.startswith(f"headrace/{recipe.name}:")]
    for name in versions[KEPT:]:
        storage.remove(name)
