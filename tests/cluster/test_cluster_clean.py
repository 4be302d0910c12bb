"""Dropping cached results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import clean, teardown, toolchain
from cluster.addresses import Plan
from cluster.paths import Layout
from cluster.record import Record


def test_only_what_nobody_needs_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_go", lambda: toolchain.Go(tmp_path / "go" / "1" / "go", "go1.26.0"))
    needed = clean.current()
    mine = [path for path in needed if path.is_relative_to(tmp_path)]
    old, running = tmp_path / "kube" / "old", tmp_path / "kube" / "running"
    assert len(mine) == 5  # three programs, the environment, the compiler
    for path in (*mine, old, running, tmp_path / "images" / "storage"):
        path.mkdir(parents=True)
    layout = Layout.of("demo")
    layout.home.mkdir(parents=True)
    Record(Plan("demo", 100), str(running / "kube"), "headrace/pause:1").save(layout.record)
    clean.clean()
    assert not old.exists()
    assert running.exists()
    assert (tmp_path / "images" / "storage").exists()
    assert all(path.exists() for path in mine)


def test_an_instance_is_purged_once_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    layout = Layout.of("demo")
    (layout.home / "containers").mkdir(parents=True)
    teardown.purge(layout)
    assert not layout.home.exists()
    teardown.purge(layout)
