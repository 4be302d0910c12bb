"""Images inside an instance's containerd: what is there, and bringing in what is not."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.oci import CHUNK, Image, archive
from cluster.process import run, tail_of
from cluster.progress import Step, say, step

OURS = "docker.io/headrace/"
ALIAS = "sha256:"  # containerd's CRI names each image a second time by its configuration: that name keeps it, too
KEPT_ALWAYS = f"{OURS}pause:"


@dataclass(frozen=True)
class NodeImages:
    """The images of one containerd, which must be running."""

    socket: Path

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

    def drop_all_but(self, names: Collection[str]) -> None:
        """Drop the project's images of other names, and the content that only they had.

        Running containers keep what they run from.
        """
        rows = [line.split() for line in run(self._ctr("images", "ls")).splitlines()[1:]]
        old = unneeded({name: digest for name, _, digest, *_ in rows}, names)
        for name in old:
            if name.startswith(OURS):
                say("load", f"dropping {name.removeprefix('docker.io/')}, which nothing names any more")
        if old:
            run(self._ctr("images", "rm", "--sync", *old))

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


def unneeded(there: Mapping[str, str], names: Collection[str]) -> list[str]:
    """Of the images `there` (full name to digest), the project's that `names` lack, and second names of what goes.

    The sandboxes' image always stays.
    """
    kept = {f"docker.io/{name}" for name in names}
    old = [name for name in there if name.startswith(OURS) and name not in kept and not name.startswith(KEPT_ALWAYS)]
    needed = {digest for name, digest in there.items() if name not in old and not name.startswith(ALIAS)}
    return old + [name for name, digest in there.items() if name.startswith(ALIAS) and digest not in needed]
