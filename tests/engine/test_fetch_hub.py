"""Downloads from a hub, against a server that speaks the hub's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.background import Background
from headrace.testing.fake_hub import COMMIT, FakeHub
from headrace_engine.core.failure import StartError
from headrace_engine.fetch.fetch import DEMO, fetch
from headrace_engine.fetch.hub import PAUSES_S, Access, download
from headrace_engine.fetch.sources import Hub

FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
UNWANTED = {"README.md": b"x", "pytorch_model.bin": b"x" * 1000, "original/model.safetensors": b"x" * 1000}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    repositories = {
        "org/demo": {**FILES, **UNWANTED},
        "org/secret": FILES,
        "org/bare": {"config.json": FILES["config.json"], "tokenizer.json": FILES["tokenizer.json"]},
        "org/torch": {"pytorch_model.bin": b"x", "config.json": b"{}"},
    }
    with Background() as background:
        yield background.enter(FakeHub(repositories, gated={"org/secret"}))


def access(hub: FakeHub, token: str | None = None) -> Access:
    return Access(hub.url, token)


def test_a_repository_becomes_a_checked_folder(hub: FakeHub, tmp_path: Path) -> None:
    found = fetch("hf://org/demo@main", tmp_path / "models", pvc_root=tmp_path, access=access(hub))
    assert found.revision == COMMIT
    assert found.weights_bytes == len(FILES["model.safetensors"])
    folder = tmp_path / "models" / "model"
    assert {path.name for path in folder.iterdir() if path.is_file()} == set(FILES)
    assert not any("pytorch_model" in path or "original" in path for path in hub.requests)


def test_what_is_there_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    for _ in range(2):
        fetch("hf://org/demo", tmp_path / "models", pvc_root=tmp_path, access=access(hub))
    assert hub.requests[f"GET /org/demo/resolve/{COMMIT}/model.safetensors"] == 1


def test_a_gated_repository_with_its_token(hub: FakeHub, tmp_path: Path) -> None:
    assert download(Hub("org/secret", "main"), tmp_path / "m", access(hub, hub.token)) == COMMIT


REFUSED: dict[str, tuple[str, str | None, str, str]] = {
    "gated": ("hf://org/secret", None, "SourceUnauthorized", "org/secret"),
    "gated-wrong-token": ("hf://org/secret", "hf_wrong", "SourceUnauthorized", "secretRef"),
    "no-repository-no-token": ("hf://org/none", None, "SourceUnauthorized", "does not exist"),
    "no-repository": ("hf://org/none", "hf_secret", "SourceNotFound", "org/none"),
    "no-revision": ("hf://org/demo@v9", None, "SourceNotFound", "v9"),
    "no-weights": ("hf://org/bare", None, "ModelIncomplete", "model.safetensors"),
    "no-tokenizer": ("hf://org/torch", None, "ModelIncomplete", "tokenizer.json"),
}


@pytest.mark.parametrize(("uri", "token", "reason", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals(hub: FakeHub, tmp_path: Path, uri: str, token: str | None, reason: str, words: str) -> None:
    with pytest.raises(StartError) as caught:
        fetch(uri, tmp_path / "models", pvc_root=tmp_path, access=access(hub, token))
    assert caught.value.reason == reason
    assert words in caught.value.message
    assert "hf_" not in caught.value.message


def test_a_listed_file_that_is_not_served(hub: FakeHub, tmp_path: Path) -> None:
    hub.lost = {"added.json"}
    with pytest.raises(StartError) as caught:
        fetch("hf://org/demo", tmp_path / "models", pvc_root=tmp_path, access=access(hub))
    assert caught.value.reason == "ModelIncomplete"
    assert "added.json" in caught.value.message


def test_a_broken_download_is_found(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/demo"]["model.safetensors"] = FILES["model.safetensors"][:-10]
    with pytest.raises(StartError, match="cut short") as caught:
        fetch("hf://org/demo", tmp_path / "models", pvc_root=tmp_path, access=access(hub))
    assert caught.value.file == "model.safetensors"


def test_a_hub_that_recovers(hub: FakeHub, tmp_path: Path) -> None:
    hub.down = 1
    pauses: list[float] = []
    assert download(Hub("org/demo", "main"), tmp_path / "m", access(hub), pauses.append) == COMMIT
    assert pauses in ([], [PAUSES_S[0]])


def test_a_hub_that_stays_away_is_given_up(tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.raises(StartError) as caught:
        download(Hub("org/demo", "main"), tmp_path / "m", Access("http://127.0.0.1:1", None), pauses.append)
    assert caught.value.reason == "SourceUnreachable"
    assert pauses == list(PAUSES_S)


def test_a_hub_that_stays_overloaded_is_given_up(hub: FakeHub, tmp_path: Path) -> None:
    hub.down = 10_000
    pauses: list[float] = []
    with pytest.raises(StartError) as caught:
        download(Hub("org/demo", "main"), tmp_path / "m", access(hub), pauses.append)
    assert caught.value.reason == "SourceUnreachable"
    assert sum(hub.requests.values()) < 50
