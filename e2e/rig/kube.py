"""kubectl and helm as functions, and waits with deadlines."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rig.forward import Forward, answers, free_port

T = TypeVar("T")


class CommandFailed(Exception):
    """A command ended with an error: carries what it printed."""


class ClusterGone(CommandFailed):
    """The cluster was taken down while it was in use: its kubeconfig is not there any more."""


class WaitFailed(AssertionError):
    """A state was not reached within its deadline."""


def wait_until(what: str, look: Callable[[], T | None], *, within: float, every: float = 0.5) -> T:
    """Poll `look` until it returns something true; raises WaitFailed naming `what` after `within` seconds.

    A CommandFailed inside `look` counts as "not yet", unless the cluster is gone; the last one is told on failure.
    """
    deadline = time.monotonic() + within
    last = ""
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = f"last seen: {seen!r}"
        except ClusterGone:
            raise
        except CommandFailed as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise WaitFailed(f"{what}: not within {within:.0f} s; {last}")
        time.sleep(every)


@dataclass(frozen=True)
class Kube:
    """A cluster as its administrator sees it."""

    kubectl: tuple[str, ...]  # command and leading arguments
    helm: tuple[str, ...]
    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 120.0, check: bool = True) -> str:
        """kubectl's standard output. Raises CommandFailed."""
        return self._run((*self.kubectl, *self._where(), *arguments), stdin, timeout, check)

    def run_helm(self, *arguments: str, stdin: str | None = None, timeout: float = 300.0) -> str:
        """helm's standard output. Raises CommandFailed."""
        return self._run((*self.helm, *self._where(), *arguments), stdin, timeout, True)

    def environment(self) -> dict[str, str]:
        """Environment for programs that find the cluster through KUBECONFIG."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def _where(self) -> tuple[str, ...]:
        """The flag that names the cluster: without the file it is an error, where KUBECONFIG would be passed over."""
        return () if os.pathsep in str(self.kubeconfig) else (f"--kubeconfig={self.kubeconfig}",)

    def require(self) -> None:
        """Raise ClusterGone where the kubeconfig is gone: kubectl would then speak to whatever it finds on loopback."""
        files = [Path(part) for part in str(self.kubeconfig).split(os.pathsep) if part]
        if not any(file.is_file() for file in files):
            raise ClusterGone(
                f"the cluster is gone, {self.kubeconfig} with it: it was taken down meanwhile (`make demo-down`); "
                "`make demo` starts it anew"
            )

    def _run(self, command: tuple[str, ...], stdin: str | None, timeout: float, check: bool) -> str:
        self.require()
        environment = self.environment()
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            self.require()
            raise CommandFailed(f"{' '.join(command[:8])}: did not end within {timeout:.0f} s") from error
        if check and done.returncode:
            self.require()
            raise CommandFailed(f"{' '.join(command[:8])}: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """An object. Raises CommandFailed where there is none."""
        found: dict[str, Any] = json.loads(self.run("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def items(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind."""
        labels = ("-l", selector) if selector else ()
        found: list[dict[str, Any]] = json.loads(self.run("get", kind, "-n", namespace, *labels, "-o", "json"))["items"]
        return found

    def exists(self, kind: str, name: str, namespace: str) -> bool:
        """Whether an object is there."""
        return bool(self.run("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "name").strip())

    def apply(self, *objects: dict[str, Any] | str, namespace: str) -> None:
        """`kubectl apply` of objects or of YAML texts."""
        for item in objects:
            text = item if isinstance(item, str) else json.dumps(item)
            self.run("apply", "-n", namespace, "-f", "-", stdin=text)

    def patch(self, kind: str, name: str, namespace: str, change: dict[str, Any]) -> None:
        """A merge patch."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    @contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """The URL at which a port of a pod or Service answers on loopback, while the context is open."""
        local = free_port()
        command = (
            *self.kubectl,
            *self._where(),
            "port-forward",
            "-n",
            namespace,
            target,
            f"{local}:{port}",
            "--address",
            "127.0.0.1",
        )
        with Forward(command, self.environment()) as kept:

            def reached() -> bool:
                self.require()
                if kept.words and not answers(local):
                    raise CommandFailed(f"port-forward ended: {kept.words}")
                return answers(local)

            wait_until(f"port-forward to {target}", reached, within=30, every=0.1)
            yield f"http://127.0.0.1:{local}"


def condition(thing: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object; empty where there is none."""
    for found in thing.get("status", {}).get("conditions", ()):
        if found["type"] == kind:
            return dict(found)
    return {}


def is_true(thing: dict[str, Any], kind: str) -> bool:
    """Whether a condition is True for the object's present generation."""
    found = condition(thing, kind)
    current = thing["status"].get("observedGeneration", -1) >= thing["metadata"]["generation"]
    return current and found.get("status") == "True"
