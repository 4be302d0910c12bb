"""`headrace gateway`: the gateway's process."""

from __future__ import annotations

import argparse
import os
import re
import socket

_LONGEST_S = 86400  # of a duration that is given in seconds


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "gateway",
        help="run a gateway (in its pod)",
        description="Serve the OpenAI API for the Models of some namespaces. Each option can be set by the environment "
        "variable HEADRACE_NAME too. Durations are seconds; where it says so, 0 means no limit.",
    )

    def option(name: str, default: object, help_: str, kind: type = str) -> None:
        variable = "HEADRACE_" + name.upper().replace("-", "_")
        parser.add_argument(f"--{name}", type=kind, default=os.environ.get(variable, default), help=help_)

    option("namespaces", "default", "namespaces to serve, separated by commas")
    option("install-namespace", "headrace", "namespace of this installation")
    option("id", socket.gethostname(), "name of this gateway: its pod's")
    option("host", "0.0.0.0", "address to listen on")
    option("port", 8080, "port for clients", int)
    option("state-port", 9090, "port of state, metrics and health", int)
    option("max-body-bytes", 3 * 1024 * 1024, "longest body", int)
    option("default-output-tokens", 1024, "output limit where a client gives none", int)
    option("first-byte-seconds", 120.0, "for an engine's first byte; 0: no limit", float)
    option("idle-seconds", 60.0, "between two pieces of an answer; 0: no limit", float)
    option("stall-seconds", 60.0, "a client that reads nothing for so long is dropped; 0: no limit", float)
    option("queue-requests", 1000, "waiting requests of one Model", int)
    option("cold-wait-seconds", 300.0, "a request waits so long for a first replica", float)
    option("linger-seconds", 5.0, "after SIGTERM, serving on while the endpoint's removal spreads", float)
    option("drain-seconds", 110.0, "after that, for requests to end", float)
    option("log-level", "INFO", "DEBUG, INFO (a line for each request), WARNING (for those that failed) or ERROR")
    option("log-format", "json", "json: an object a line; text: for people")
    parser.set_defaults(run=run)


def _check(arguments: argparse.Namespace) -> list[str]:
    """The namespaces. Raises UsageError for what cannot be."""
    from headrace.api.common import LABEL_PATTERN
    from headrace.cli.main import UsageError

    for name, value in vars(arguments).items():
        flag = f"gateway: --{name.replace('_', '-')}"
        if name in ("port", "state_port") and not 0 <= value <= 65535:
            raise UsageError(f"{flag} must be a port, got {value}")
        if name.endswith("_seconds") and not (0 <= value <= _LONGEST_S):
            raise UsageError(f"{flag} must be 0 to {_LONGEST_S} seconds, got {value:g}")
        if name in ("max_body_bytes", "default_output_tokens", "queue_requests") and value < 1:
            raise UsageError(f"{flag} must be at least 1, got {value}")
    names = [name.strip() for name in arguments.namespaces.split(",") if name.strip()]
    for name in names:
        if len(name) > 63 or not re.fullmatch(LABEL_PATTERN, name):
            raise UsageError(f"gateway: --namespaces: {name!r} is no name of a namespace")
    if not names:
        raise UsageError("gateway: --namespaces names none")
    return list(dict.fromkeys(names))


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    import asyncio
    import logging

    import uvloop

    from headrace.cli import logs
    from headrace.cli.main import UsageError
    from headrace.cluster.errors import ClusterError
    from headrace.gateway.main import Ports, run
    from headrace.gateway.settings import Settings

    logs.configure_from(arguments, "gateway")
    namespaces = _check(arguments)
    settings = Settings(
        gateway=arguments.id,
        body_bytes=arguments.max_body_bytes,
        default_output=arguments.default_output_tokens,
        first_s=arguments.first_byte_seconds,
        idle_s=arguments.idle_seconds,
        stall_s=arguments.stall_seconds,
        queue_requests=arguments.queue_requests,
        cold_wait_s=arguments.cold_wait_seconds,
        linger_s=arguments.linger_seconds,
        drain_s=arguments.drain_seconds,
    )
    ports = Ports(arguments.host, arguments.port, arguments.state_port)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(settings, ports, namespaces))
    except (ClusterError, OSError) as error:
        logging.getLogger(__name__).error("gateway did not start: %s", error)
        raise UsageError(f"gateway: {error}") from error
