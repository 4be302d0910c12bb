"""URIs and volumes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from headrace_engine.core.failure import StartError
from headrace_engine.fetch.fetch import DEMO, fetch
from headrace_engine.fetch.sources import Builtin, Hub, Source, Volume, parse
from headrace_engine.main import main
from headrace_wire.shape import Termination

GOOD: dict[str, Source] = {
    "builtin://demo": Builtin("demo"),
    "pvc://models": Volume("models", PurePosixPath()),
    "pvc://models/a/b": Volume("models", PurePosixPath("a/b")),
    "hf://org/name": Hub("org/name", "main"),
    "hf://org/na.me-1@v1.0": Hub("org/na.me-1", "v1.0"),
    "hf://org/name@refs/pr/1": Hub("org/name", "refs/pr/1"),
}
BAD = [
    "",
    "demo",
    "builtin://other",
    "pvc://",
    "pvc:///a",
    "pvc://c/../x",
    "pvc://c//etc",
    "hf://name",
    "hf://a/b/c",
    "hf://a/b@",
    "s3://a/b",
    "hf://a/b@x y",
]


@pytest.mark.parametrize(("uri", "source"), GOOD.items(), ids=list(GOOD))
def test_parsed(uri: str, source: Source) -> None:
    assert parse(uri) == source


@pytest.mark.parametrize("uri", BAD)
def test_refused_with_what_to_write(uri: str) -> None:
    with pytest.raises(StartError, match=r"write|supported|only") as caught:
        parse(uri)
    assert caught.value.reason == "SourceInvalid"


def test_builtin(tmp_path: Path) -> None:
    found = fetch("builtin://demo", tmp_path / "models", pvc_root=tmp_path)
    assert (tmp_path / "models" / "model" / "config.json").exists()
    assert found.shape is not None
    assert (found.shape.architecture, found.shape.layers) == ("LlamaForCausalLM", 3)
    assert found.weights_bytes == (DEMO / "model.safetensors").stat().st_size
    assert fetch("builtin://demo", tmp_path / "models", pvc_root=tmp_path) == found


def test_volume(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "source" / "a" / "b")
    found = fetch("pvc://claim/a/b", tmp_path / "models", pvc_root=tmp_path / "source")
    assert (tmp_path / "models" / "model").resolve() == (tmp_path / "source" / "a" / "b").resolve()
    assert found.revision


def test_volume_refusals(tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    expected = {"pvc://c/none": "SourceNotFound", "pvc://c/link": "SourceInvalid"}
    for uri, reason in expected.items():
        with pytest.raises(StartError) as caught:
            fetch(uri, tmp_path / "models", pvc_root=root)
        assert caught.value.reason == reason
    with pytest.raises(StartError, match="not mounted"):
        fetch("pvc://c/none", tmp_path / "models", pvc_root=tmp_path / "nowhere")


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit codes and what stands in the termination log."""
    log = tmp_path / "termination"
    monkeypatch.setenv("HEADRACE_TERMINATION_LOG", str(log))
    monkeypatch.setattr("sys.argv", ["headrace-engine", "fetch", "builtin://demo", "--into", str(tmp_path / "m")])
    assert main() == 0
    found = msgspec.json.decode(log.read_bytes(), type=Termination)
    assert found.shape is not None
    assert found.reason == ""
    arguments = ["headrace-engine", "fetch", "pvc://c/x", "--into", str(tmp_path / "m"), "--pvc-root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 1
    said = json.loads(log.read_bytes())
    assert said["reason"] == "SourceNotFound"
    assert "x" in said["message"]
    assert len(os.fsencode(log.read_text())) < 4096
