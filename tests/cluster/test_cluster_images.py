"""Images: archives with what a node lacks, layers out of buildah's storage, build contexts."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import baseimage, context, pipconfig
from cluster.nodeimages import keep_newest
from cluster.oci import Blob, Image, archive, file_layer, single_layer
from cluster.storage import assemble

IMAGE = single_layer("headrace/x:1", Blob.of(file_layer({"bin/x": b"program"})), {"Entrypoint": ["/bin/x"]}, "amd64")


def _archive(image: Image, present: frozenset[str] = frozenset()) -> dict[str, bytes]:
    written = io.BytesIO(b"".join(archive(image, "registry.example/x:1", present)))
    with tarfile.open(fileobj=written) as tar:
        return {entry.name: file.read() for entry in tar if (file := tar.extractfile(entry))}


def test_archive_is_whole_and_its_digests_hold() -> None:
    files = _archive(IMAGE)
    index = json.loads(files["index.json"])
    manifest = json.loads(files[f"blobs/{index['manifests'][0]['digest'].replace(':', '/')}"])
    for part in (manifest["config"], *manifest["layers"]):
        content = files[f"blobs/{part['digest'].replace(':', '/')}"]
        assert Blob.of(content).digest == part["digest"]
        assert len(content) == part["size"]
    assert set(index["manifests"][0]["annotations"].values()) == {"registry.example/x:1"}


def test_archive_leaves_out_what_the_node_has() -> None:
    layer = IMAGE.parts[1]
    assert set(_archive(IMAGE)) - set(_archive(IMAGE, frozenset({layer.digest}))) == {
        f"blobs/{layer.digest.replace(':', '/')}"
    }


def test_same_files_give_the_same_layer() -> None:
    assert file_layer({"a": b"1", "b": b"2"}) == file_layer({"b": b"2", "a": b"1"})


@given(files=st.dictionaries(st.from_regex(r"\A[a-z]{1,8}\Z"), st.binary(max_size=2000), max_size=5))
def test_layer_is_put_together_from_log_and_folder(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The log has the bytes between files and the files' names, as tar-split writes it."""
    tar = file_layer(files)
    folder = tmp_path_factory.mktemp("diff")
    log: list[str] = []
    end = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as entries:
        for entry in entries:
            (folder / entry.name).write_bytes(files[entry.name])
            log.append(json.dumps({"type": 2, "payload": base64.b64encode(tar[end : entry.offset_data]).decode()}))
            log.append(json.dumps({"type": 1, "name": f"./{entry.name}", "size": entry.size}))
            end = entry.offset_data + entry.size
    log.append(json.dumps({"type": 2, "payload": base64.b64encode(tar[end:]).decode()}))
    assert b"".join(assemble(iter(log), folder)) == tar


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for recipe in context.RECIPES:
        (tmp_path / recipe.dockerfile).parent.mkdir(exist_ok=True)
        (tmp_path / recipe.dockerfile).write_text("FROM scratch\n")
        for folder in recipe.folders:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "code.py").write_text("x = 1\n")
    (tmp_path / "constraints.txt").write_text("torch==1\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path


PYPROJECT = """[project]
dependencies = ["a>=1"]
[project.optional-dependencies]
operator = ["b"]
gateway = ["c; python_version >= '3.11'"]
engine = ["torch"]
dev = ["pytest"]
"""


@pytest.mark.parametrize("recipe", context.RECIPES, ids=lambda recipe: recipe.name)
def test_context_does_not_change_with_lint_rules_or_compiled_files(checkout: Path, recipe: context.Recipe) -> None:
    before = context.files(recipe, checkout)
    (checkout / "pyproject.toml").write_text(PYPROJECT.replace("pytest", "other") + "[tool.ruff]\nline-length = 99\n")
    (checkout / recipe.folders[0] / "__pycache__").mkdir()
    (checkout / recipe.folders[0] / "__pycache__" / "code.pyc").write_bytes(b"")
    assert context.files(recipe, checkout) == before


@pytest.mark.parametrize(
    ("recipe", "file"),
    [
        pytest.param(context.ENGINE, "engine/headrace_engine/code.py", id="engine-code"),
        pytest.param(context.CONTROL_PLANE, "engine/headrace_wire/code.py", id="shared-code"),
        pytest.param(context.CONTROL_PLANE, "constraints.txt", id="pins"),
        pytest.param(context.ENGINE, "engine/Dockerfile", id="dockerfile"),
    ],
)
def test_context_changes_with_what_the_image_holds(checkout: Path, recipe: context.Recipe, file: str) -> None:
    before = context.files(recipe, checkout)
    (checkout / file).write_text("changed\n")
    assert context.files(recipe, checkout) != before


def test_engine_code_is_not_in_the_control_plane(checkout: Path) -> None:
    assert not any("headrace_engine" in name for name in context.files(context.CONTROL_PLANE, checkout))


def test_staged_context_is_the_same_each_time(checkout: Path, tmp_path: Path) -> None:
    def look(folder: Path) -> dict[str, tuple[float, int]]:
        context.stage(context.files(context.ENGINE, checkout), folder)
        return {
            str(path.relative_to(folder)): (path.stat().st_mtime, path.stat().st_mode) for path in folder.rglob("*")
        }

    assert look(tmp_path / "one") == look(tmp_path / "two")


def test_pip_settings_of_the_environment_win_and_secrets_of_other_kinds_stay_out() -> None:
    listed = (
        ":env:.index-url='https://packages.example/simple'\n"
        "global.index-url='https://old.example/simple'\n"
        "global.find-links='/opt/wheels'\n"
        "global.timeout='180'\n"
    )
    text = pipconfig.render(listed, "/ca.crt")
    assert "index-url = https://packages.example/simple\n" in text
    assert "old.example" not in text
    assert "find-links" not in text
    assert "timeout = 180\n" in text
    assert "cert = /ca.crt\n" in text


def test_apt_options_that_decide_how_packages_are_reached() -> None:
    dump = 'Acquire::Check-Date "false";\nAcquire::http::Proxy "http://proxy.example";\nAPT::Get "1";\n'
    assert baseimage.machine_options(dump) == [
        'Acquire::Check-Date "false"',
        'Acquire::http::Proxy "http://proxy.example"',
    ]


def test_only_old_versions_of_the_same_repository_are_dropped() -> None:
    kept, dropped = keep_newest(["r/a:1", "r/b:1", "r/a:2", "r/a:3"], 2)
    assert (kept, dropped) == (["r/b:1", "r/a:2", "r/a:3"], ["r/a:1"])
