"""`headrace operator`: the entry point of the operator's pods."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.api import labels

if TYPE_CHECKING:
    from headrace.controller.settings import Settings


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "operator",
        help="run the operator (the entry point of its pods)",
        description="Reconcile Models and scale them. Each flag falls back to an environment variable.",
    )
    env, state_port = os.environ, str(labels.GATEWAY_STATE_PORT)
    installed = env.get("HEADRACE_INSTALL_NAMESPACE") or env.get("POD_NAMESPACE") or "headrace"
    flags: tuple[tuple[str, str | None, str], ...] = (
        ("--install-namespace", installed, "namespace of operator and gateway"),
        ("--namespaces", env.get("HEADRACE_NAMESPACES"), "namespaces to watch, separated by commas (default: its own)"),
        ("--engine-image", env.get("HEADRACE_ENGINE_IMAGE"), "image of the engines"),
        ("--gateway-service", env.get("HEADRACE_GATEWAY_SERVICE", "headrace-gateway"), "Service of the gateways"),
        ("--gateway-state-port", env.get("HEADRACE_GATEWAY_STATE_PORT", state_port), "port of their state"),
        ("--gateway-port", env.get("HEADRACE_GATEWAY_PORT", "80"), "port of the Service, shown in a Model's status"),
        ("--gateway-url", env.get("HEADRACE_GATEWAY_URL"), "poll this URL instead (outside the cluster)"),
        ("--prometheus-url", env.get("HEADRACE_PROMETHEUS_URL"), "Prometheus that history is read from"),
        ("--hub-endpoint", env.get("HEADRACE_HUB_ENDPOINT"), "hub that hf:// sources are fetched from"),
        ("--scraper", env.get("HEADRACE_SCRAPER"), "NetworkPolicyPeer (JSON) that may read the engines' metrics"),
        ("--host", env.get("HEADRACE_HOST", "0.0.0.0"), "address of /healthz, /readyz and /metrics"),
        ("--port", env.get("HEADRACE_PORT", str(labels.OPERATOR_PORT)), "port of the same"),
        ("--id", env.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}", "identity in the Lease"),
        ("--kubeconfig", None, "kubeconfig (default: the pod's credentials, then $KUBECONFIG)"),
        ("--log-level", env.get("HEADRACE_LOG_LEVEL", "INFO"), "DEBUG, INFO, WARNING or ERROR"),
        ("--log-format", env.get("HEADRACE_LOG_FORMAT", "json"), "json: an object a line; text: for people"),
    )  # fmt: skip
    for flag, default, text in flags:
        parser.add_argument(flag, default=default, help=text)
    parser.set_defaults(run=_run)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Settings from flags. Raises UsageError."""
    from headrace.api.common import LABEL_PATTERN
    from headrace.cli.main import UsageError
    from headrace.controller.settings import Settings
    from headrace.planning.installation import Installation

    if not arguments.engine_image:
        raise UsageError("operator: --engine-image (or HEADRACE_ENGINE_IMAGE) is required")
    installation = Installation(
        namespace=arguments.install_namespace,
        engine_image=arguments.engine_image,
        gateway_service=arguments.gateway_service,
        gateway_port=_port(arguments, "gateway_port"),
        hub_endpoint=arguments.hub_endpoint or None,
        scraper=_peer(arguments.scraper),
    )
    namespaces = tuple(filter(None, (name.strip() for name in (arguments.namespaces or "").split(","))))
    for name in (*namespaces, arguments.install_namespace):
        if len(name) > 63 or not re.fullmatch(LABEL_PATTERN, name):
            raise UsageError(f"operator: {name!r} is no name of a namespace")
    if not arguments.id:
        raise UsageError("operator: --id must not be empty: it tells who holds the Lease")
    return Settings(
        installation=installation,
        namespaces=tuple(dict.fromkeys(namespaces)) or (installation.namespace,),
        identity=arguments.id,
        host=arguments.host,
        port=_port(arguments, "port"),
        kubeconfig=arguments.kubeconfig,
        gateway_state_port=_port(arguments, "gateway_state_port"),
        gateway_url=arguments.gateway_url or None,
        prometheus_url=arguments.prometheus_url or None,
    )


def _port(arguments: argparse.Namespace, name: str) -> int:
    from headrace.cli.main import UsageError

    text = str(getattr(arguments, name))
    if not text.isdigit() or int(text) > 65535:
        raise UsageError(f"operator: --{name.replace('_', '-')} must be a port, got {text!r}")
    return int(text)


def _peer(text: str | None) -> Mapping[str, Any] | None:
    from headrace.cli.main import UsageError

    if not text:
        return None
    try:
        peer = json.loads(text)
    except ValueError as error:
        raise UsageError(f"operator: --scraper is no JSON: {error}") from error
    if not isinstance(peer, dict) or not peer.keys() <= {"podSelector", "namespaceSelector", "ipBlock"}:
        raise UsageError("operator: --scraper must be a NetworkPolicyPeer: podSelector, namespaceSelector or ipBlock")
    return peer or None


def _run(arguments: argparse.Namespace) -> int:
    import asyncio
    import logging

    from headrace.cli import logs
    from headrace.cli.main import UsageError
    from headrace.cluster.errors import NotConfigured
    from headrace.controller.health import AddressTaken
    from headrace.controller.main import run

    settings = settings_of(arguments)
    logs.configure_from(arguments, "operator")
    try:
        asyncio.run(run(settings))
    except (NotConfigured, AddressTaken) as error:
        logging.getLogger(__name__).error("operator did not start: %s", error)
        raise UsageError(f"operator: {error}") from error
    return 0
