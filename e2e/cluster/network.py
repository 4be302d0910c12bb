"""The network namespace of an instance and the machine's way into it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.addresses import Plan
from cluster.errors import ClusterError
from cluster.process import run, succeeds

NAMESPACES = Path("/run/netns")


def enter(namespace: str) -> list[str]:
    """The command prefix that runs something in a network namespace (and nothing else of it)."""
    return ["nsenter", f"--net={NAMESPACES / namespace}", "--"]


def machine_routes() -> list[str]:
    """Destinations of the machine's IPv4 routes, the default route left out."""
    return [route["dst"] for route in _json(["ip", "-4", "-j", "route"]) if route["dst"] != "default"]


def create(plan: Plan) -> None:
    """Namespace, veth pair to the machine, bridge of the pods, routes, forwarding.

    The bridge and its address come before kube-apiserver, which advertises that address.
    Without a route for Services, a client in the namespace cannot connect to one.
    """
    inside = enter(plan.namespace)
    run(["ip", "netns", "add", plan.namespace])
    run(["ip", "link", "add", plan.veth, "type", "veth", "peer", "name", "uplink", "netns", plan.namespace])
    run(["ip", "addr", "add", f"{plan.machine_ip}/30", "dev", plan.veth])
    run(["ip", "link", "set", plan.veth, "up"])
    for command in (
        "ip link set lo up",
        f"ip addr add {plan.uplink_ip}/30 dev uplink",
        "ip link set uplink up",
        "ip link add pods type bridge",
        f"ip addr add {plan.node_ip}/24 dev pods",
        "ip link set pods up",
        f"ip route add {plan.service_cidr} dev pods",
    ):
        run([*inside, *command.split()])
    for setting in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
        file = f"/proc/sys/net/{setting}"
        run([*inside, "sh", "-c", f"test ! -e {file} || echo 1 > {file}"])
    run(["ip", "route", "add", plan.network, "via", plan.uplink_ip])


def exists(plan: Plan) -> bool:
    """Whether the namespace is there."""
    return (NAMESPACES / plan.namespace).exists()


def pids(namespace: str) -> set[int]:
    """Processes in a network namespace."""
    if not (NAMESPACES / namespace).exists():
        return set()
    return {int(pid) for pid in run(["ip", "netns", "pids", namespace]).split()}


def pod_namespaces(plan: Plan) -> list[str]:
    """Namespaces of the instance's pods: those with an address of its pod range."""
    pods = ipaddress.ip_network(plan.pod_cidr)
    found = []
    for path in sorted(NAMESPACES.glob("cni-*")):
        with contextlib.suppress(ClusterError):  # a namespace that another cluster removed meanwhile
            if any(ipaddress.ip_address(address) in pods for address in _addresses(path.name)):
                found.append(path.name)
    return found


def remove(plan: Plan, pods: Sequence[str]) -> None:
    """Delete the veth pair (the machine's routes go with it), pods' namespaces, and the instance's own.

    The pair goes first: the kernel takes it down with the namespace, some time after that was deleted.
    """
    if succeeds(["ip", "link", "show", plan.veth]):
        run(["ip", "link", "del", plan.veth])
    for namespace in (*pods, plan.namespace):
        if (NAMESPACES / namespace).exists():
            run(["ip", "netns", "del", namespace])


def _addresses(namespace: str) -> list[str]:
    links = _json([*enter(namespace), "ip", "-4", "-j", "addr"])
    return [entry["local"] for link in links for entry in link.get("addr_info", [])]


def _json(command: list[str]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(run(command) or "[]")
    return listed
