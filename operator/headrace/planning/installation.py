"""What the planning of a Model needs to know of the installation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One installation of Headrace."""

    namespace: str  # where operator and gateway run
    engine_image: str
    gateway_service: str = "headrace-gateway"
    gateway_port: int = 80  # of the Service, for clients
    hub_endpoint: str | None = None  # HF_ENDPOINT of the init containers
    scraper: Mapping[str, Any] | None = None  # NetworkPolicyPeer that may read the engines' metrics

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        port = "" if self.gateway_port == 80 else f":{self.gateway_port}"
        return f"http://{self.gateway_service}.{self.namespace}.svc{port}/v1"
