"""Images in memory: blobs by digest, and archives that carry only the blobs a node lacks."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")  # the first for containerd, then buildah
CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Blob:
    """Bytes known by their digest, read when they are needed."""

    digest: str  # sha256:...
    size: int  # bytes
    read: Callable[[], Iterable[bytes]]

    @staticmethod
    def of(content: bytes) -> Blob:
        """A blob held in memory."""
        return Blob(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), lambda: [content])

    @staticmethod
    def of_file(path: Path) -> Blob:
        """A blob that is a file."""
        with path.open("rb") as handle:
            digest = f"sha256:{hashlib.file_digest(handle, 'sha256').hexdigest()}"
        return Blob(digest, path.stat().st_size, lambda: _chunks(path))

    def descriptor(self, media_type: str) -> dict[str, Any]:
        """How a manifest names it."""
        return {"mediaType": media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Image:
    """An image whose blobs can be read."""

    name: str  # as pods name it: headrace/engine:0123456789abcdef
    manifest: Blob
    parts: tuple[Blob, ...]  # config and layers

    @property
    def full_name(self) -> str:
        """The name a node resolves the short one to."""
        return f"docker.io/{self.name}"

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Everything an archive may carry."""
        return (*self.parts, self.manifest)


def single_layer(name: str, layer: Blob, config: Mapping[str, Any], architecture: str) -> Image:
    """An image of one uncompressed layer."""
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        "history": [{"created_by": name}],
    }
    settings = Blob.of(json.dumps(document).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": settings.descriptor(CONFIG),
        "layers": [layer.descriptor(LAYER)],
    }
    return Image(name, Blob.of(json.dumps(manifest).encode()), (settings, layer))


def archive(image: Image, name: str, present: Collection[str] = frozenset()) -> Iterator[bytes]:
    """An OCI archive (a tar) of `image`, called `name`, without the blobs in `present`.

    A node that has those blobs takes it like a whole one.
    """
    entry = image.manifest.descriptor(MANIFEST) | {"annotations": dict.fromkeys(NAMES, name)}
    index = Blob.of(json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
    yield from _file("oci-layout", Blob.of(b'{"imageLayoutVersion": "1.0.0"}'))
    for blob in image.blobs:
        if blob.digest not in present:
            yield from _file(f"blobs/{blob.digest.replace(':', '/')}", blob)
    yield from _file("index.json", index)
    yield bytes(2 * tarfile.BLOCKSIZE)


def file_layer(files: Mapping[str, bytes]) -> bytes:
    """A layer of executable files; the same input gives the same bytes."""
    parts = [part for name in sorted(files) for part in _file(name, Blob.of(files[name]))]
    return b"".join([*parts, bytes(2 * tarfile.BLOCKSIZE)])


def _file(name: str, blob: Blob) -> Iterator[bytes]:
    """A file of a tar: header, content, padding to whole blocks."""
    header = tarfile.TarInfo(name)
    header.size = blob.size
    header.mode = 0o755
    yield header.tobuf(tarfile.PAX_FORMAT)
    yield from blob.read()
    yield bytes(-blob.size % tarfile.BLOCKSIZE)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            yield chunk
