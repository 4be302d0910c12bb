"""Results kept by their inputs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import cache
from cluster.errors import ClusterError

INPUTS = st.dictionaries(st.text(max_size=8), st.binary(max_size=16), max_size=4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    return tmp_path


@given(inputs=INPUTS)
def test_key_ignores_order(inputs: dict[str, bytes]) -> None:
    assert cache.key_of(inputs) == cache.key_of(dict(reversed(inputs.items())))


@given(one=INPUTS, other=INPUTS)
def test_key_tells_inputs_apart(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (cache.key_of(one) == cache.key_of(other)) == (one == other)


def test_bytes_do_not_move_between_name_and_content() -> None:
    assert cache.key_of({"a": b"bc"}) != cache.key_of({"ab": b"c"})


def test_second_call_does_not_build() -> None:
    built: list[Path] = []

    def make(folder: Path) -> None:
        built.append(folder)
        (folder / "result").write_text("made")

    first = cache.ensure("thing", "key", make)
    assert cache.ensure("thing", "key", make) == first
    assert (first / "result").read_text() == "made"
    assert len(built) == 1


def test_failed_build_leaves_nothing_and_is_tried_again(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ClusterError("no network")

    with pytest.raises(ClusterError, match="no network"):
        cache.ensure("thing", "key", fail)
    assert [path.name for path in (own_cache / "thing").iterdir()] == ["key.lock"]
    assert cache.ensure("thing", "key", lambda folder: None).is_dir()


def test_two_callers_at_once_build_once() -> None:
    begun, release = threading.Event(), threading.Event()
    builds: list[str] = []

    def slow(folder: Path) -> None:
        builds.append("slow")
        begun.set()
        assert release.wait(10)

    first = threading.Thread(target=cache.ensure, args=("thing", "key", slow))
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=cache.ensure, args=("thing", "key", lambda folder: builds.append("second")))
    second.start()
    release.set()
    first.join(10)
    second.join(10)
    assert builds == ["slow"]
