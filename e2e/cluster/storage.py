"""buildah's storage of images, in the cache folder, and reading layers out of it.

A layer is stored unpacked, with a log (tar-split) of everything of its tar that is not file content. Put together
again, they are the layer's own bytes: no packing, no second copy on disk, only what a node lacks is read.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import cache
from cluster.errors import ClusterError
from cluster.oci import CHUNK, Blob, Image, archive
from cluster.process import run, succeeds

FILE = 1  # kind of a log entry: the content of a file; the other kind is bytes as they are


@dataclass(frozen=True)
class Storage:
    """A containers/storage folder with the overlay driver."""

    folder: Path

    @staticmethod
    def default() -> Storage:
        """The machine's."""
        return Storage(cache.root() / "images")

    def buildah(self, *arguments: str) -> list[str]:
        """A buildah command on this storage."""
        root, runtime = self.folder / "storage", self.folder / "run"
        return ["buildah", "--root", str(root), "--runroot", str(runtime), "--storage-driver", "overlay", *arguments]

    def exists(self) -> bool:
        """Whether anything was ever put into it."""
        return (self.folder / "storage" / "overlay-images").is_dir()

    def has(self, name: str) -> bool:
        """Whether the image is there."""
        return succeeds(self.buildah("inspect", "--type", "image", f"localhost/{name}"))

    def find(self, name: str) -> Image | None:
        """The image of that name, or None."""
        if not self.has(name):
            return None
        told = json.loads(run(self.buildah("inspect", "--type", "image", f"localhost/{name}")))
        manifest = json.loads(told["Manifest"])
        config = Blob.of(told["Config"].encode())
        if config.digest != manifest["config"]["digest"]:
            raise ClusterError(f"image {name} in {self.folder} is damaged: remove that folder and try again")
        layers = [self._layer(entry) for entry in manifest["layers"]]
        return Image(name, Blob.of(told["Manifest"].encode()), (config, *layers))

    def names(self) -> list[str]:
        """Names of all images, newest first."""
        listed = json.loads(run(self.buildah("images", "--json")) or "[]")
        newest_first = sorted(listed, key=lambda image: float(image["created"]), reverse=True)
        names = [name for image in newest_first for name in image.get("names") or []]
        return [name.removeprefix("localhost/") for name in names if name.startswith("localhost/headrace/")]

    def put(self, image: Image) -> None:
        """Bring an image in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{image.manifest.digest.removeprefix('sha256:')}.tar"
        try:
            with file.open("wb") as output:
                output.writelines(archive(image, f"localhost/{image.name}"))
            run(self.buildah("pull", "--quiet", f"oci-archive:{file}"))
        finally:
            file.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Drop an image; layers that others use stay."""
        run(self.buildah("rmi", f"localhost/{name}"))

    def remove_unnamed(self) -> None:
        """Drop images without a name that none with a name is made of."""
        run(self.buildah("rmi", "--prune"))

    def _layer(self, entry: dict[str, Any]) -> Blob:
        layers = json.loads((self.folder / "storage/overlay-layers/layers.json").read_text())
        identity = next((layer["id"] for layer in layers if layer.get("diff-digest") == entry["digest"]), None)
        if identity is None:
            raise ClusterError(f"layer {entry['digest']} is not in {self.folder}: remove that folder and try again")
        return Blob(entry["digest"], entry["size"], lambda: self._read(identity))

    def _read(self, layer: str) -> Iterator[bytes]:
        log = self.folder / f"storage/overlay-layers/{layer}.tar-split.gz"
        content = self.folder / f"storage/overlay/{layer}/diff"
        with gzip.open(log, "rt") as lines:
            yield from assemble(lines, content)


def assemble(log: Iterator[str], content: Path) -> Iterator[bytes]:
    """The tar that a tar-split log and the folder of its files were made of."""
    for line in log:
        entry = json.loads(line)
        if entry["type"] != FILE:
            yield base64.b64decode(entry["payload"])
        elif entry.get("size", 0) > 0:
            name = base64.b64decode(entry["name_raw"]) if "name_raw" in entry else entry["name"].encode()
            yield from _read_file(content / name.decode(errors="surrogateescape").lstrip("/"))


def _read_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            yield chunk
