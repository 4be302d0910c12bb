"""A new instance starts with the images of a neighbour that is down: linked, not copied; seconds, not a minute.

Blobs and unpacked layers are never changed in place, only added and removed, so two stores may share their files.
Their databases are changed in place and are copied.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.paths import Layout
from cluster.process import run
from cluster.progress import say
from cluster.teardown import mounts_below


def from_neighbour(layout: Layout) -> None:
    """Fill the image store of an instance that has none, if any other instance can give one."""
    if layout.images.exists():
        return
    for home in sorted(layout.home.parent.glob("*")):
        donor = Layout(home)
        if home != layout.home and donor.images.is_dir():
            with _held_down(donor) as down:
                if down:
                    clone(donor, layout)
                    say("up", f"images are shared with those of instance {home.name}")
                    return


def clone(donor: Layout, layout: Layout) -> None:
    """Make a store that shares the donor's files; whole or not at all."""
    draft = layout.home / "images.new"
    shutil.rmtree(draft, ignore_errors=True)
    layout.home.mkdir(parents=True, exist_ok=True)
    run(["cp", "--archive", "--link", donor.images, draft])
    for database in draft.glob("*/*.db"):  # PLUGIN/NAME.db; deeper ones are files of some layer
        copy = database.with_suffix(".new")
        shutil.copy2(database, copy)
        copy.replace(database)
    draft.rename(layout.images)


@contextmanager
def _held_down(layout: Layout) -> Iterator[bool]:
    """Whether the instance is down; it stays so inside of the block."""
    with layout.lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not layout.record.exists() and not layout.run.exists() and not mounts_below(layout.home)
