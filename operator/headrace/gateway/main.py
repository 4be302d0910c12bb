"""Wiring: builds every part once, serves two ports, drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from headrace import __version__
from headrace.admission.quota import QuotaLedger
from headrace.cluster.client import connect
from headrace.gateway.counting import Counter
from headrace.gateway.dispatch import Dispatcher
from headrace.gateway.endpoints import ClusterFeed
from headrace.gateway.engines import Fleet
from headrace.gateway.exchange import RetryBudget, Stage
from headrace.gateway.front import ClientProtocol
from headrace.gateway.hot import Gateway, Parts
from headrace.gateway.ledger import Books
from headrace.gateway.metering import Metrics
from headrace.gateway.rest import client_routes, state_routes
from headrace.gateway.settings import Settings
from headrace.gateway.state import Reporter
from headrace.gateway.upstream import Pool
from headrace.gateway.world import ObjectKey, World

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ports:
    """Where to listen; port 0 takes a free one."""

    host: str = "0.0.0.0"
    clients: int = 8080
    state: int = 9090


class _Server(uvicorn.Server):
    """Leaves signals to us, and waits for `leave` instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self._leave = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._leave.wait()

    def leave(self) -> None:
        """Stop listening and let requests end."""
        self.should_exit = True
        self._leave.set()

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return int(self.servers[0].sockets[0].getsockname()[1])


class Service:
    """A whole gateway on a World that somebody else fills. `start`, then `drain` or `stop`."""

    def __init__(self, world: World, settings: Settings, ports: Ports):
        self.world = world
        self.settings = settings
        self.metrics = Metrics()
        self.pool = Pool(settings.connect_s)
        self.quotas = QuotaLedger()
        self.books = Books()
        self.draining = False
        self._counter = Counter(self.pool)
        self.fleet = Fleet(world, self.pool, self._counter, settings, time.monotonic)
        self.dispatcher = Dispatcher(world, self.fleet, self.books, settings, time.monotonic)
        self.reporter = Reporter(
            settings.gateway,
            time.time(),
            world,
            self.fleet,
            self.dispatcher,
            self.books,
            self.quotas,
            time.monotonic,
            time.time,
        )
        self._clients = _server(self._client_app(), ports.host, ports.clients, settings.drain_s)
        self._state = _server(self._state_app(), ports.host, ports.state, 1)
        self._tasks: list[asyncio.Task[None]] = []
        self._tenants: set[ObjectKey] = set()  # those with a quota

    @property
    def port(self) -> int:
        """The clients' port."""
        return self._clients.port

    @property
    def state_port(self) -> int:
        """The port of state, metrics and health."""
        return self._state.port

    async def start(self) -> None:
        """Listen on both ports. Raises OSError if one is taken."""
        self.world.listeners.append(self._world_changed)
        self._world_changed()
        for server in (self._state, self._clients):
            server.config.load()
            self._tasks.append(asyncio.create_task(_serve(server)))
        while not (self._state.started and self._clients.started):
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise OSError("a port could not be listened on")
            await asyncio.sleep(0.01)

    async def drain(self) -> None:
        """Serve on while the removal of this endpoint spreads, then refuse connections and let requests end."""
        self.draining = True
        logger.info("draining began", extra={"requests": len(self._clients.server_state.tasks)})
        await asyncio.sleep(self.settings.linger_s)
        await self.stop()

    async def stop(self) -> None:
        """Refuse new connections, let requests end for `drain_s` seconds, then end them with an error."""
        self.draining = True
        self._clients.leave()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        self._state.leave()
        await asyncio.gather(*self._tasks[:1], return_exceptions=True)
        self.fleet.close()
        self.pool.close()
        self._counter.close()

    def why_not_ready(self) -> str:
        """ "" when requests are welcome."""
        if self.draining:
            return "draining"
        return "" if self.world.synced else "the cluster has not been read yet"

    def _world_changed(self) -> None:
        self.dispatcher.reconcile()
        self.fleet.reconcile()
        for key, tenant in self.world.tenants.items():
            self.quotas.configure(key, tenant.spec.quota)
        for key in self._tenants - self.world.tenants.keys():
            self.quotas.forget(key)
            self.books.forget_tenant(key)
        self._tenants = set(self.world.tenants)

    def _client_app(self) -> Gateway:
        stage = Stage(
            self.settings,
            self.pool,
            self._counter,
            self.fleet,
            self.metrics,
            RetryBudget(self.settings.retry_percent),
            time.monotonic,
            time.time,
        )
        parts = Parts(self.world, self.quotas, self.dispatcher, self.books, stage)
        return Gateway(parts, client_routes(self.world))

    def _state_app(self) -> Any:
        def refresh() -> None:
            self.reporter.refresh(self.metrics)
            self.metrics.connections.set(self.pool.opened)

        return state_routes(self.reporter.state, self.metrics.registry, refresh, self.why_not_ready)


def _server(app: Any, host: str, port: int, drain_s: float) -> _Server:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=ClientProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(drain_s)),
    )
    return _Server(config)


async def _serve(server: _Server) -> None:
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn's answer to a port that is taken; it has logged the reason
        where = f"port {server.config.port} of {server.config.host}"
        raise OSError(f"{where} cannot be listened on; free it, or name another (--port, --state-port)") from error


def calm_collector() -> None:
    """Look for cycles rarely: requests leave hardly any, and what was made at start stays."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _start_fields(service: Service, namespaces: Sequence[str]) -> dict[str, str | int | float]:
    """What the first line of the log says: where it listens, whom it serves, within which limits."""
    here = {"port": service.port, "state_port": service.state_port, "namespaces": ",".join(namespaces)}
    return {"version": __version__, **here, **dataclasses.asdict(service.settings)}


async def run(settings: Settings, ports: Ports, namespaces: Sequence[str]) -> int:
    """Serve the Models of these namespaces until SIGTERM; the exit status. Raises ClusterError, OSError."""
    world = World()
    service = Service(world, settings, ports)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await connect() as client:
        await service.start()
        calm_collector()
        logger.info("gateway started", extra=_start_fields(service, namespaces))
        feed = asyncio.create_task(ClusterFeed(world, client, namespaces).run())
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({feed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if feed in done:  # a watch ends only by an error of ours
            stopped.cancel()
            await service.stop()
            feed.result()
            return 1
        await service.drain()
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        logger.info("gateway stopped")
    return 0
