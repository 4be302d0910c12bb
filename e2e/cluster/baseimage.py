"""A base image from Debian's packages: Python 3.11 with venv, certificates, OpenMP. No registry of images is asked."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cluster import cache, platform
from cluster.errors import ClusterError, require_root, require_tools
from cluster.oci import Blob, single_layer
from cluster.process import follow, run
from cluster.progress import step
from cluster.storage import Storage

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
SCRUBBED = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/var/lib/apt/lists/*",
    "/var/cache/apt/*",
    "/var/log/*",
)
TARGETS = ["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"]


def name() -> str:
    """The image's name: it changes with what goes in, not with Debian's updates."""
    return f"headrace/base:{cache.key_of({'recipe': repr((SUITE, PACKAGES, LEFT_OUT, SCRUBBED))})}"


def ensure(storage: Storage) -> str:
    """The name of the base image, built and put into the storage if it is not there."""
    image = name()
    if not storage.has(image):
        require_root("building the base image")
        require_tools("mmdebstrap", "apt-get")
        with cache.locked(cache.root() / "build-base.lock", "base"):
            if not storage.has(image):
                with tempfile.TemporaryDirectory(prefix="headrace-base-") as scratch:
                    _bootstrap(Path(scratch), storage, image)
    return image


def _bootstrap(folder: Path, storage: Storage, image: str) -> None:
    (folder / "sources").write_text(debian_sources())
    scrub = f'for path in {" ".join(SCRUBBED)}; do rm -rf "$1"$path; done'
    command = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        *(f"--aptopt={option}" for option in machine_options(run(["apt-config", "dump"]))),
        f"--customize-hook={scrub}",
        *(SUITE, str(folder / "base.tar"), str(folder / "sources")),
    ]
    with step("base", f"a base image of Debian {SUITE}", "40 s") as running:
        follow(command, lambda line: setattr(running, "detail", line[:80]))
        config = {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
        storage.put(single_layer(image, Blob.of_file(folder / "base.tar"), config, platform.architecture()))


def debian_sources() -> str:
    """Lines of a sources.list: where this machine gets Debian's packages from."""
    listed = run([*TARGETS, "Created-By: Packages", "Origin: Debian"])
    lines = sorted({line for line in listed.splitlines() if f" {SUITE}" in line})
    if not lines:
        raise ClusterError(f"apt knows no Debian {SUITE} packages: add them to /etc/apt and run `apt-get update`")
    return "\n".join(lines) + "\n"


def machine_options(dump: str) -> list[str]:
    """Of `apt-config dump`, what decides how packages are reached: proxies, certificates, clock checks."""
    prefixes = ("Acquire::Check-", "Acquire::http::", "Acquire::https::")
    return [line.rstrip(";") for line in dump.splitlines() if line.startswith(prefixes) and not line.endswith('"";')]
