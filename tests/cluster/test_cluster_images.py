"""Images: archives with what a node lacks, layers out of buildah's storage, build contexts."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import baseimage, context, images, pipconfig
from cluster.nodeimages import NodeImages, unneeded
from cluster.oci import Blob, Image, archive, file_layer, single_layer
from cluster.storage import Storage, assemble

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
    (tmp_path / "constraints.txt").write_text(PINS)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path


PINS = f"torch==1\n\n{context.DEVELOPMENT}: nothing else.\npytest==1\n"
PYPROJECT = """[project]
dependencies = ["a>=1"]
[project.optional-dependencies]
operator = ["b"]
gateway = ["c; python_version >= '3.11'"]
engine = ["torch"]
dev = ["pytest"]
"""


@pytest.mark.parametrize("recipe", context.RECIPES, ids=lambda recipe: recipe.name)
def test_context_does_not_change_with_tools_of_development_or_compiled_files(
    checkout: Path, recipe: context.Recipe
) -> None:
    before = context.files(recipe, checkout)
    (checkout / "pyproject.toml").write_text(PYPROJECT.replace("pytest", "other") + "[tool.ruff]\nline-length = 99\n")
    (checkout / "constraints.txt").write_text(PINS.replace("pytest==1", "pytest==2"))
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


NODE = {
    "docker.io/headrace/engine:old": "sha256:m1",
    "docker.io/headrace/engine:new": "sha256:m2",
    "docker.io/headrace/pause:p": "sha256:m3",
    "docker.io/somebody/else:1": "sha256:m4",
    "sha256:c1": "sha256:m1",
    "sha256:c2": "sha256:m2",
    "sha256:c3": "sha256:m3",
    "sha256:c4": "sha256:m4",
    "sha256:c0": "sha256:m0",
}


def test_images_that_nothing_names_go_with_their_second_names() -> None:
    """The sandboxes' image and those of others stay; so does what shares its digest with an image that stays."""
    assert set(unneeded(NODE, {"headrace/engine:new"})) == {"docker.io/headrace/engine:old", "sha256:c1", "sha256:c0"}
    assert unneeded(NODE | {"docker.io/headrace/engine:new": "sha256:m1"}, {"headrace/engine:new"})[0].endswith(":old")
    same = {
        "docker.io/headrace/engine:a": "sha256:m",
        "docker.io/headrace/engine:b": "sha256:m",
        "sha256:c": "sha256:m",
    }
    assert unneeded(same, {"headrace/engine:b"}) == ["docker.io/headrace/engine:a"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a program before all others of its name: prints what it is given to print, and writes down its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, printed: str) -> Path:
        told, calls = folder / f"{name}.out", folder / f"{name}.calls"
        told.write_text(printed)
        calls.touch()
        (folder / name).write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec cat {told}\n')
        (folder / name).chmod(0o755)
        return calls

    return make


def test_node_is_told_once_which_images_go(tool: Callable[[str, str], Path]) -> None:
    rows = [
        f"{name} {MEDIA} {digest} 1.0 MiB linux/amd64 io.cri-containerd.image=managed" for name, digest in NODE.items()
    ]
    calls = tool("ctr", "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows]))
    node = NodeImages(Path("/run/c.sock"))
    node.drop_all_but({"headrace/engine:new"})
    head = "--address /run/c.sock --namespace k8s.io images"
    assert calls.read_text().splitlines() == [
        f"{head} ls",
        f"{head} rm --sync docker.io/headrace/engine:old sha256:c1 sha256:c0",
    ]
    calls.write_text("")
    tool("ctr", "REF TYPE DIGEST SIZE PLATFORMS LABELS\n")
    node.drop_all_but(set())
    assert calls.read_text().splitlines() == [f"{head} ls"]


MEDIA = "application/vnd.oci.image.manifest.v1+json"


def test_storage_keeps_what_this_checkout_builds(
    tool: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    storage = Storage(tmp_path / "images")
    needed = [*images.current().values(), baseimage.name()]
    assert images.drop_old(storage) == []
    (storage.folder / "storage" / "overlay-images").mkdir(parents=True)
    names = [*needed, "headrace/engine:old", "headrace/base:old", "somebody/else:1"]
    listed = [{"created": "1", "names": [f"localhost/{name}"]} for name in names]
    calls = tool("buildah", json.dumps([*listed, {"created": "2", "names": None}]))
    assert set(images.drop_old(storage)) == {"headrace/engine:old", "headrace/base:old"}
    removed = [line.partition(" rmi ")[2] for line in calls.read_text().splitlines() if " rmi " in line]
    assert removed == ["localhost/headrace/engine:old", "localhost/headrace/base:old", "--prune"]
