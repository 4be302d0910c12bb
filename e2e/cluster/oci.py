"""Images in memory: blobs by digest, and archives that carry only the blobs a node lacks."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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


def write_archive(image: Image, name: str, output: IO[bytes], present: Collection[str] = frozenset()) -> int:
    """Write an OCI archive of `image`, called `name`, without the blobs in `present`; bytes of blobs written.

    A node that has those blobs takes it like a whole one.
    """
    entry = image.manifest.descriptor(MANIFEST) | {"annotations": dict.fromkeys(NAMES, name)}
    written = 0
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", Blob.of(b'{"imageLayoutVersion": "1.0.0"}'))
        for blob in image.blobs:
            if blob.digest not in present:
                _add(archive, f"blobs/{blob.digest.replace(':', '/')}", blob)
                written += blob.size
        _add(archive, "index.json", Blob.of(json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()))
    return written


def file_layer(files: Mapping[str, bytes]) -> bytes:
    """A layer of executable files; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            _add(archive, name, Blob.of(files[name]))
    return buffer.getvalue()


class _Reader(io.RawIOBase):
    """A stream over chunks, as tarfile wants one."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _add(archive: tarfile.TarFile, name: str, blob: Blob) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = blob.size
    entry.mode = 0o755
    archive.addfile(entry, io.BufferedReader(_Reader(blob.read()), CHUNK))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            yield chunk
