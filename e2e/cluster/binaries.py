"""Go programs built from pinned modules: `kube` (all of Kubernetes and CoreDNS), `helm`, `pause`."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import cache, toolchain
from cluster.process import follow
from cluster.progress import Step, step

SOURCES = Path(__file__).parent / "go"
KUBERNETES_VERSION = "v1.34.4"  # as in go/kube/go.mod; without it every part reports v0.0.0


@dataclass(frozen=True)
class Program:
    """A Go program in `go/<name>`, built as one static binary."""

    name: str
    usual: str  # how long a cold build takes on two cores
    package: str = "."
    ldflags: str = "-s -w"

    @property
    def source(self) -> Path:
        """The folder of its module."""
        return SOURCES / self.name


KUBE = Program("kube", "5 min", ldflags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}")
HELM = Program("helm", "2 min 30 s", package="helm.sh/helm/v3/cmd/helm")
PAUSE = Program("pause", "10 s")
PROGRAMS = (KUBE, HELM, PAUSE)


def key(program: Program, go_version: str) -> str:
    """The cache key of a build: sources, pins, flags and compiler."""
    files = {path.name: path.read_bytes() for path in program.source.iterdir() if path.is_file()}
    return cache.key_of(files | {"flags": f"{program.package} {program.ldflags}", "go": go_version})


def build(program: Program) -> Path:
    """The path of the built binary, from the cache or compiled now."""
    go = toolchain.find_go()
    return cache.ensure(program.name, key(program, go.version), lambda folder: _compile(program, go, folder)) / (
        program.name
    )


def kube() -> Path:
    """The multi-call Kubernetes binary; its first argument is the part."""
    return build(KUBE)


def helm() -> Path:
    """The helm client."""
    return build(HELM)


def _compile(program: Program, go: toolchain.Go, folder: Path) -> None:
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    with step(program.name, f"compiling {program.name} with {go.version}", program.usual) as running:
        total = _count_packages(program, go, env)
        seen = 0

        def on_line(line: str) -> None:
            nonlocal seen
            if line.startswith("go: downloading"):
                running.detail = line.removeprefix("go: ")
                return
            seen += 1
            running.detail = f"{seen} of at most {total} packages compiled, last {line[:60]}"

        output = str(folder / program.name)
        command = [str(go.path), "build", "-v", "-ldflags", program.ldflags, "-o", output, program.package]
        follow(command, on_line, env=env, cwd=program.source)
        _report_size(running, folder / program.name)


def _count_packages(program: Program, go: toolchain.Go, env: dict[str, str]) -> int:
    """How many packages the program has; downloads what is missing, as the build would."""
    command = [str(go.path), "list", "-deps", program.package]
    listed = subprocess.run(command, cwd=program.source, env=env, text=True, capture_output=True, check=False)
    return len(listed.stdout.splitlines())


def _report_size(running: Step, binary: Path) -> None:
    running.detail = f"{binary.stat().st_size / 1e6:.0f} MB"
