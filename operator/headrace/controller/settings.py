"""What an operator process is told."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api import labels
from headrace.planning.installation import Installation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Flags of `headrace operator`."""

    installation: Installation
    namespaces: tuple[str, ...]  # that are watched; the installation's own by default
    identity: str  # unique per process: the pod's name
    port: int = labels.OPERATOR_PORT
    host: str = "0.0.0.0"
    kubeconfig: str | None = None
    gateway_state_port: int = labels.GATEWAY_STATE_PORT
    gateway_url: str | None = None  # polled instead of the gateways that the Service's endpoints name
    prometheus_url: str | None = None
    workers: int = 4

    @property
    def manager(self) -> str:
        """The field manager of all writes."""
        return labels.field_manager(self.installation.namespace)
