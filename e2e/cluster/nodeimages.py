"""Images inside an instance's containerd: what is there, and bringing in what is not."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.oci import CHUNK, Image, archive
from cluster.process import run, tail_of
from cluster.progress import Step, say, step

KEEP = 2  # versions of one repository that a node keeps


@dataclass(frozen=True)
class NodeImages:
    """The images of one containerd, which must be running."""

    socket: Path
    record: Path  # remembers the order of loading, newest last

    def _ctr(self, *args: str) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *args]

    def ready(self) -> set[str]:
        """Full names of images that are complete and unpacked."""
        return set(run(self._ctr("images", "check", "--quiet")).split())

    def present(self) -> set[str]:
        """Digests of blobs the node has."""
        return set(run(self._ctr("content", "ls", "--quiet")).split())

    def load(self, image: Image) -> None:
        """Bring one image in, sending only blobs that the node lacks; nothing if it is there."""
        if image.full_name in self.ready():
            say("load", f"{image.name} is already there")
            return
        present = self.present()
        missing = sum(blob.size for blob in image.blobs if blob.digest not in present)
        usual = "1 min" if missing > 1e9 else ""
        with step("load", f"importing {image.name}: {missing / 1e6:.0f} MB that the node lacks", usual) as running:
            self._import(image, present, running)
        self._forget_old(image.name)

    def _import(self, image: Image, present: set[str], running: Step) -> None:
        command = self._ctr("images", "import", "--snapshotter", "overlayfs", "-")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as importer:
            if importer.stdin is None or importer.stdout is None:
                raise ClusterError("ctr: no pipe")
            try:
                fcntl.fcntl(importer.stdin, fcntl.F_SETPIPE_SZ, CHUNK)
                sent = 0  # bytes
                for chunk in archive(image, image.full_name, present):
                    importer.stdin.write(chunk)
                    sent += len(chunk)
                    running.detail = f"{sent / 1e6:.0f} MB sent"
                importer.stdin.close()
                running.detail = "unpacking"
            except BrokenPipeError:
                pass  # ctr has ended; its own message says more
            told = importer.stdout.read().decode(errors="replace")
        if importer.returncode != 0 or image.full_name not in self.ready():
            raise ClusterError(f"containerd did not take {image.name}: {tail_of(told)}")

    def _forget_old(self, name: str) -> None:
        """Drop versions of the same repository beyond the newest KEEP; running containers are not touched."""
        loaded: list[str] = json.loads(self.record.read_text()) if self.record.exists() else []
        kept, dropped = keep_newest([*(old for old in loaded if old != name), name], KEEP)
        self.record.write_text(json.dumps(kept))
        for old in dropped:
            run(self._ctr("images", "rm", "--sync", f"docker.io/{old}"))


def keep_newest(names: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Split `repository:tag` names, oldest first, into the newest `count` of each repository and the rest."""
    kept: list[str] = []
    dropped: list[str] = []
    seen: dict[str, int] = {}
    for name in reversed(names):
        repository = name.rpartition(":")[0]
        seen[repository] = seen.get(repository, 0) + 1
        (kept if seen[repository] <= count else dropped).append(name)
    return kept[::-1], dropped[::-1]
