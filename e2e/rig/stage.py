"""An installed Headrace with one tenant, on which tests put Models."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rig import samples
from rig.chat import Endpoint, chat, question
from rig.install import Key, headrace, install
from rig.kube import CommandFailed, Kube, is_true, wait_until
from rig.world import World

INSTANCE = "test"  # the embedded cluster of the tests
RELEASE = "headrace-e2e"  # namespace of operator and gateway
TEAM = "team-e2e"  # namespace of Models and Tenants
MODEL = "model.headrace.dev"
NO_HUB = "http://127.0.0.1:9"  # nobody listens there in a pod
READY_WITHIN = 240.0  # seconds


@dataclass(frozen=True)
class Stage:
    """Where tests play."""

    world: World
    release: str  # namespace of operator and gateway
    team: str  # namespace of Models and Tenants
    endpoint: Endpoint
    key: Key

    @property
    def kube(self) -> Kube:
        """The cluster."""
        return self.world.kube

    def install(self, **operator: Any) -> None:
        """Headrace with these settings of the operator; again: an upgrade."""
        values = {"operator": {"hubEndpoint": NO_HUB, **operator}}
        install(self.kube, self.release, [self.team], self.world.images, values)

    @contextmanager
    def model(self, name: str, *, wait: bool = True, **spec: Any) -> Iterator[None]:
        """A Model that the tenant may call; deleted at the end, with its pods."""
        self.kube.apply(
            samples.model(name, **spec), samples.tenant("e2e", [name], self.key.sha256), namespace=self.team
        )
        try:
            if wait:
                self.wait_ready(name)
            self._wait_known(name)
            yield
        finally:
            self.kube.run("delete", MODEL, name, "-n", self.team, "--ignore-not-found", "--wait=true")
            wait_until(f"pods of {name} are gone", lambda: not self.pods(name), within=180)

    def _wait_known(self, name: str) -> None:
        def enforced() -> bool:
            return is_true(self.kube.get("tenant.headrace.dev", "e2e", self.team), "Enforced")

        wait_until("the gateway enforces the tenant", enforced, within=60)

    def wait_ready(self, name: str) -> None:
        """Wait until the Model is Ready."""
        wait_until(f"Model {name} is Ready", lambda: self.ready(name), within=READY_WITHIN)

    def ready(self, name: str) -> bool:
        """Whether the Model is Ready for its present generation."""
        return is_true(self.kube.get(MODEL, name, self.team), "Ready")

    def ready_replicas(self, name: str) -> int:
        """Ready replicas, as the status tells."""
        return int(self.kube.get(MODEL, name, self.team)["status"].get("readyReplicas", 0))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Pods of a Model, ending ones included."""
        return self.kube.items("pod", self.team, f"headrace.dev/model={name}")

    def status(self, name: str) -> dict[str, Any]:
        """The Model's status."""
        return dict(self.kube.get(MODEL, name, self.team).get("status", {}))

    def decisions(self, name: str) -> list[tuple[int, int]]:
        """The last changes of the number of replicas that were decided, oldest first: from, to."""
        last = self.status(name).get("scaling", {}).get("lastDecisions", [])
        return [(made["from"], made["to"]) for made in reversed(last)]

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and note of the Model's Events."""
        found = self.kube.items("events.events.k8s.io", self.team)
        return [(e["reason"], e.get("note", "")) for e in found if e["regarding"].get("name") == name]

    def explain(self, name: str) -> str:
        """What `headrace explain` says of the Model. Raises CommandFailed."""
        return self._headrace("explain", "model", name, "-n", self.team)

    def recording(self, name: str) -> str:
        """The leader's last decisions on the Model, with all that they were made from, as JSON lines."""
        lease = self.kube.get("lease", "headrace-operator", self.release)
        pod = f"/api/v1/namespaces/{self.release}/pods/{lease['spec']['holderIdentity']}:8081/proxy"
        return self.kube.run("get", "--raw", f"{pod}/debug/decisions?model={self.team}/{name}")

    def replay(self, recording: str) -> str:
        """What `headrace replay` says of a recording. Raises CommandFailed where it decides otherwise."""
        return self._headrace("replay", "-", stdin=recording)

    def _headrace(self, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            (headrace(), *arguments),
            input=stdin,
            env=self.kube.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CommandFailed(f"headrace {arguments[0]}: {done.stdout[-2000:]}{done.stderr[-1000:]}")
        return done.stdout

    def kill_pods(self, namespace: str, selector: str) -> None:
        """Kill pods without grace."""
        self.kube.run("delete", "pod", "-n", namespace, "-l", selector, "--grace-period=0", "--force")

    def restart_gateway(self) -> None:
        """End the gateway's pod, with its process gone when this returns, and wait until the next one answers."""
        selector = "app.kubernetes.io/component=gateway"
        self.kube.run("delete", "pod", "-n", self.release, "-l", selector, "--wait=true", timeout=180)
        self.wait_gateway()

    def wait_gateway(self) -> None:
        """Wait until the gateway answers again, with its objects known: an unknown model is 404, not a refused key."""

        def answers() -> bool:
            return chat(self.endpoint, question("no-such-model", "hello"), timeout=10).status == 404

        wait_until("the gateway answers", answers, within=120)
