"""Dropping cached results that nothing needs any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster import binaries, cache, images, toolchain, venv
from cluster.context import ROOT
from cluster.nodeimages import NodeImages
from cluster.paths import Layout
from cluster.progress import say
from cluster.record import Record
from cluster.storage import Storage

KINDS = ("go", "venv", *(program.name for program in binaries.PROGRAMS))


def clean() -> None:
    """Remove results of other keys than this checkout's, unless a running instance uses them, and images likewise."""
    needed = current() | in_use()
    for kind in KINDS:
        for result in sorted((cache.root() / kind).glob("*/")):
            if not any(path.is_relative_to(result) for path in needed):
                say("clean", f"removing {result}")
                shutil.rmtree(result)
    for name in images.drop_old(Storage.default()):
        say("clean", f"removed image {name}")
    for home in sorted((cache.root() / "state").glob("*/")):
        record = Record.load(Layout(home).record)
        if record is None or record.held_by_other(ROOT):
            continue
        if (containerd := record.process("containerd")) and containerd.alive:
            NodeImages(Layout(home).containerd_socket).drop_all_but(images.current().values())


def current() -> set[Path]:
    """Where this checkout's results are, built or not."""
    root = cache.root()
    go = toolchain.find_go()
    built = {root / program.name / binaries.key(program, go.version) for program in binaries.PROGRAMS}
    environment = root / "venv" / venv.Requirements.of(ROOT).key(venv.interpreter())
    return {*built, environment, go.path}


def in_use() -> set[Path]:
    """Binaries that instances run."""
    homes = (cache.root() / "state").glob("*/")
    records = [Record.load(Layout(home).record) for home in homes]
    return {Path(record.kube) for record in records if record}
