"""The local image store: one OCI layout folder for all images, and archives of what a cluster lacks of one.

Layers are kept uncompressed: packing five gigabytes takes a minute, writing them seconds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cluster import cache

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
REFERENCE = "org.opencontainers.image.ref.name"
FULL_NAME = "io.containerd.image.name"


@dataclass(frozen=True)
class Image:
    """An image of the store."""

    name: str  # as pods name it: headrace/engine:0123456789abcdef
    manifest: Mapping[str, Any]  # descriptor
    blobs: tuple[str, ...]  # digests of manifest, config and layers, in this order

    @property
    def full_name(self) -> str:
        """The name a node resolves the short one to."""
        return f"docker.io/{self.name}"


@dataclass(frozen=True)
class Store:
    """An OCI layout folder."""

    folder: Path

    @staticmethod
    def default() -> Store:
        """The machine's store, made if there is none."""
        store = Store(cache.root() / "oci")
        (store.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        layout = store.folder / "oci-layout"
        if not layout.exists():
            layout.write_text('{"imageLayoutVersion": "1.0.0"}')
        return store

    @property
    def lock(self) -> Path:
        """To be held by whoever writes the index."""
        return self.folder.with_name("oci.lock")

    @property
    def _index(self) -> Path:
        return self.folder / "index.json"

    def reference(self, name: str) -> str:
        """How buildah names an image of this store."""
        return f"oci:{self.folder}:{name}"

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        return self.folder / "blobs" / digest.replace(":", "/")

    def descriptors(self) -> list[dict[str, Any]]:
        """The entries of the index."""
        if not self._index.exists():
            return []
        entries: list[dict[str, Any]] = json.loads(self._index.read_text())["manifests"]
        return entries

    def find(self, name: str) -> Image | None:
        """The image of that name, if it is there whole."""
        for entry in self.descriptors():
            if entry.get("annotations", {}).get(REFERENCE) == name:
                manifest = json.loads(self.blob(entry["digest"]).read_bytes())
                parts = [manifest["config"], *manifest["layers"]]
                image = Image(name, entry, (entry["digest"], *(part["digest"] for part in parts)))
                return image if all(self.blob(digest).exists() for digest in image.blobs) else None
        return None

    def names(self) -> list[str]:
        """All image names, oldest first."""
        return [entry.get("annotations", {}).get(REFERENCE, "") for entry in self.descriptors()]

    def put(self, name: str, layer: bytes | Path, config: Mapping[str, Any]) -> Image:
        """Add an image of one layer (an uncompressed tar); a Path is moved into the store."""
        blob = self._move(layer) if isinstance(layer, Path) else self._write(layer, LAYER)
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [blob["digest"]]},
            "history": [{"created_by": name}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._write(json.dumps(document).encode(), CONFIG),
            "layers": [blob],
        }
        entry = self._write(json.dumps(manifest).encode(), MANIFEST)
        entry["annotations"] = {REFERENCE: name}
        with cache.locked(self.lock, "images"):
            others = [old for old in self.descriptors() if old.get("annotations", {}).get(REFERENCE) != name]
            self.write_index([*others, entry])
        return Image(name, entry, (entry["digest"], manifest["config"]["digest"], blob["digest"]))  # type: ignore[index]

    def write_index(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Replace the index."""
        draft = self.folder / "index.json.new"
        draft.write_text(json.dumps({"schemaVersion": 2, "manifests": list(entries)}))
        draft.replace(self._index)

    def prune(self, keep: Collection[str]) -> int:
        """Forget images not in `keep` and delete blobs no image has; bytes freed. The caller holds `lock`."""
        kept = [entry for entry in self.descriptors() if entry.get("annotations", {}).get(REFERENCE) in keep]
        self.write_index(kept)
        images = [self.find(name) for name in self.names()]
        used = {digest for image in images if image for digest in image.blobs}
        freed = 0
        for file in (self.folder / "blobs" / "sha256").iterdir():
            if f"sha256:{file.name}" not in used:
                freed += file.stat().st_size
                file.unlink()
        return freed

    def _write(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        draft = self.blob(digest).with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(self.blob(digest))
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def _move(self, layer: Path) -> dict[str, Any]:
        with layer.open("rb") as handle:
            digest = f"sha256:{hashlib.file_digest(handle, 'sha256').hexdigest()}"
        size = layer.stat().st_size
        layer.replace(self.blob(digest))
        return {"mediaType": LAYER, "digest": digest, "size": size}


def write_archive(store: Store, image: Image, present: Collection[str], output: IO[bytes]) -> int:
    """Write an OCI archive of `image` without the blobs in `present`; bytes of blobs written.

    A node that has those blobs takes it like a whole one.
    """
    annotations = {FULL_NAME: image.full_name, REFERENCE: image.name.rpartition(":")[2]}
    entry = {**image.manifest, "annotations": annotations}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    written = 0
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for digest in image.blobs:
            if digest not in present:
                file = store.blob(digest)
                archive.add(file, f"blobs/{digest.replace(':', '/')}")
                written += file.stat().st_size
        _add(archive, "index.json", index)
    return written


def file_layer(files: Mapping[str, bytes]) -> bytes:
    """A layer of executable files; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            _add(archive, name, files[name])
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o755
    archive.addfile(entry, io.BytesIO(content))
