"""An installed Headrace with one tenant, on which tests put Models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rig import samples
from rig.chat import Endpoint, chat, question
from rig.install import Key
from rig.kube import Kube, is_true, wait_until

MODEL = "model.headrace.dev"
READY_WITHIN = 240.0  # seconds


@dataclass(frozen=True)
class Stage:
    """Where tests play."""

    kube: Kube
    release: str  # namespace of operator and gateway
    team: str  # namespace of Models and Tenants
    endpoint: Endpoint
    key: Key

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
