"""Which addresses and names an instance uses: all derived from its name (pure)."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import ClusterError

NAME = re.compile(r"[a-z][a-z0-9]{0,9}")  # fits an interface name of 15 characters
FIRST, COUNT = 100, 100  # second octets 100 to 199 of 10.0.0.0/8
API_PORT = 6443


@dataclass(frozen=True)
class Plan:
    """The names and addresses of one instance, all inside 10.OCTET.0.0/16.

    Machine side            network namespace `headrace-NAME`
    veth `hr-NAME` .64.1 -- `uplink` .64.2, bridge `pods` .0.1 (node, API server, DNS), pods .0.2 to .0.254
    """

    name: str
    octet: int

    @property
    def namespace(self) -> str:
        """The network namespace, also the node's name and the cgroup's."""
        return f"headrace-{self.name}"

    @property
    def veth(self) -> str:
        """The machine's end of the pair."""
        return f"hr-{self.name}"

    @property
    def network(self) -> str:
        """Everything of this instance."""
        return f"10.{self.octet}.0.0/16"

    @property
    def node_ip(self) -> str:
        """The bridge's address: node, API server inside the cluster, DNS."""
        return f"10.{self.octet}.0.1"

    @property
    def pod_cidr(self) -> str:
        """Addresses of pods."""
        return f"10.{self.octet}.0.0/24"

    @property
    def service_cidr(self) -> str:
        """Addresses of Services."""
        return f"10.{self.octet}.128.0/20"

    @property
    def kubernetes_service(self) -> str:
        """The first Service address, which kube-apiserver gives itself."""
        return f"10.{self.octet}.128.1"

    @property
    def machine_ip(self) -> str:
        """The machine's end of the veth pair."""
        return f"10.{self.octet}.64.1"

    @property
    def uplink_ip(self) -> str:
        """The cluster's end of the veth pair; the machine reaches the API server here."""
        return f"10.{self.octet}.64.2"

    @property
    def api_url(self) -> str:
        """The API server as seen from the machine and from inside alike."""
        return f"https://{self.uplink_ip}:{API_PORT}"


def check_name(name: str) -> str:
    """The name, or ClusterError if it cannot name an instance."""
    if NAME.fullmatch(name) is None:
        raise ClusterError(f"--name {name!r}: use 1 to 10 lower-case letters or digits, a letter first")
    return name


def choose(name: str, routed: Iterable[str]) -> Plan:
    """The plan of `name`: the octet its hash gives, or the next that no route of the machine overlaps."""
    taken = [ipaddress.ip_network(route, strict=False) for route in routed]
    start = int.from_bytes(hashlib.sha256(check_name(name).encode()).digest()[:4])
    for step in range(COUNT):
        plan = Plan(name, FIRST + (start + step) % COUNT)
        if not any(ipaddress.ip_network(plan.network).overlaps(network) for network in taken):
            return plan
    raise ClusterError(f"no free network among 10.{FIRST}.0.0/16 to 10.{FIRST + COUNT - 1}.0.0/16 on this machine")
