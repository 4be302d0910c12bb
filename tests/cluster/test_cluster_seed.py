"""Sharing an image store with a neighbour that is down."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from cluster import seed
from cluster.paths import Layout


@pytest.fixture
def donor(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "demo")
    for name in ("plugin/meta.db", "plugin/blobs/layer", "snapshots/1/fs/usr/lib/some.db"):
        (layout.images / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.images / name).write_text(name)
    layout.lock.touch()
    return layout


@pytest.fixture
def fresh(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "test")


def test_layers_are_shared_and_databases_are_not(donor: Layout, fresh: Layout) -> None:
    seed.from_neighbour(fresh)
    shared = {
        str(path.relative_to(fresh.images)): path.samefile(donor.images / path.relative_to(fresh.images))
        for path in fresh.images.rglob("*")
        if path.is_file()
    }
    assert shared == {"plugin/meta.db": False, "plugin/blobs/layer": True, "snapshots/1/fs/usr/lib/some.db": True}
    assert (fresh.images / "plugin/meta.db").read_text() == "plugin/meta.db"


def test_a_store_of_its_own_is_left_alone(donor: Layout, fresh: Layout) -> None:
    fresh.images.mkdir(parents=True)
    seed.from_neighbour(fresh)
    assert not list(fresh.images.iterdir())


def test_a_running_neighbour_gives_nothing(donor: Layout, fresh: Layout) -> None:
    donor.record.write_text("{}")
    seed.from_neighbour(fresh)
    assert not fresh.images.exists()


def test_a_neighbour_that_is_being_started_gives_nothing(donor: Layout, fresh: Layout) -> None:
    with donor.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        seed.from_neighbour(fresh)
    assert not fresh.images.exists()


def test_without_a_neighbour_nothing_happens(fresh: Layout) -> None:
    seed.from_neighbour(fresh)
    assert not fresh.images.exists()
