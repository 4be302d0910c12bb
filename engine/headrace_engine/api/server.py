"""Serving: the HTTP server, the core behind it, and the ways in which both end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import uvicorn
from msgspec.structs import asdict

from headrace_engine.api.app import App
from headrace_engine.api.client import MAILBOX_BYTES, CoreFailed, CoreLink, Target
from headrace_engine.api.connection import Connection
from headrace_engine.api.defaults import NO_DEFAULTS, Defaults
from headrace_engine.api.drain import Drain
from headrace_engine.api.metrics import Metrics
from headrace_engine.api.parts import Parts, Threads
from headrace_engine.config import EngineConfig
from headrace_engine.core.messages import Failed, Ready
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import StepTimes

log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_START = 1  # the model cannot be served
EXIT_CORE_DIED = 70
_SHORT_THREADS = 2  # for tokenizing
_ERROR_EVENTS_S = 1.0  # for open streams to get their error event after the core died
_KEEP_ALIVE_S = 75


@dataclass(frozen=True)
class Settings:
    """What serving needs beside the engine's own settings."""

    host: str
    port: int  # 0: any free one
    drain_s: float
    stream_bytes: int = MAILBOX_BYTES  # that may wait for one client
    defaults: Defaults = NO_DEFAULTS  # of sampling, where a body leaves a field out


@dataclass(frozen=True)
class Ended:
    """How serving ended; `failed` says why where the code is not 0."""

    code: int
    failed: Failed | None = None


class Server(uvicorn.Server):
    """uvicorn, with the signals left to the caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals begin the drain, see `Engine`."""
        yield


class Engine:
    """Builds everything of the API process and runs it until it ends."""

    def __init__(self, config: EngineConfig, settings: Settings, tokenizer: ChatTokenizer, target: Target):
        self._settings = settings
        self._started_at = time.monotonic()
        self._pools = (
            ThreadPoolExecutor(_SHORT_THREADS, thread_name_prefix="tokenize"),
            ThreadPoolExecutor(1, thread_name_prefix="tokenize-long"),
        )
        self.link = CoreLink(config, target, time.monotonic, mailbox_bytes=settings.stream_bytes)
        self._drain = Drain(self.link, self._open, settings.drain_s)
        metrics = Metrics(lambda: self.link.state, self._open, config.served_name)
        self.link.on_delta = metrics.arrived
        threads, name = Threads(*self._pools), config.served_name
        parts = Parts(self.link, tokenizer, metrics, self._drain, threads, name, settings.defaults)
        self.app = App(parts, time.monotonic, self._started_at, config.instance)

    def _open(self) -> int:
        return self.app.generate.open

    def stop(self) -> None:
        """Begins to leave, as SIGTERM does."""
        self._drain.begin()

    async def run(self, listening: socket.socket) -> Ended:
        """Serves on a bound socket until a signal, or until the core ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        server = Server(
            uvicorn.Config(
                self.app,
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        starting = asyncio.create_task(self._start(listening))
        try:
            ended = await self._until_ended(serving, starting)
            server.should_exit = True
            server.force_exit = ended.code != EXIT_OK
            await asyncio.wait({serving}, timeout=0.5 if ended.code else None)
        finally:
            await self.link.stop()
            for pool in self._pools:
                pool.shutdown(wait=False, cancel_futures=True)
        return ended

    async def _start(self, listening: socket.socket) -> None:
        ready = await self.link.start()
        self.app.became_ready()
        _report(ready, time.monotonic() - self._started_at, listening)

    async def _until_ended(self, serving: asyncio.Task[None], starting: asyncio.Task[None]) -> Ended:
        died = asyncio.create_task(self.link.died.wait())
        begun = asyncio.create_task(self._drain.begun.wait())
        try:
            await asyncio.wait({serving, starting, begun}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                return Ended(EXIT_OK)
            if (error := starting.exception()) is not None:
                if isinstance(error, CoreFailed):
                    return Ended(EXIT_START, error.failed)
                raise error
            await asyncio.wait({serving, died, begun}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                await self._finish()
            if died.done():
                await self._error_events()
                return Ended(EXIT_CORE_DIED, self.link.failed)
            return Ended(EXIT_OK)
        finally:
            died.cancel()
            begun.cancel()

    async def _finish(self) -> None:
        log.info("draining", extra={"open_requests": self._open(), "grace_s": self._settings.drain_s})
        ended = await self._drain.finish()
        log.info("drained", extra={"requests_ended_early": ended})

    async def _error_events(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _ERROR_EVENTS_S
        while self._open() and loop.time() < until:  # noqa: ASYNC110  requests end in many places; bounded by a second
            await asyncio.sleep(0.02)


def _report(ready: Ready, seconds: float, listening: socket.socket) -> None:
    """The start-up report: what is served and where the memory went."""
    model = ready.model
    log.info(
        "model loaded",
        extra={
            "model": model.name,
            "architecture": model.architecture,
            "dtype": model.dtype,
            "max_tokens": model.max_tokens,
            "max_sequences": model.max_sequences,
            "max_batch_tokens": model.max_batch_tokens,
            "seconds": round(seconds, 2),
        },
    )
    tokens = ready.total_pages * model.page_tokens
    log.info(
        "memory",
        extra={
            "arithmetic": arithmetic(ready),
            **ready.memory,
            "kv_bytes_per_token": sum(group.bytes_per_token for group in ready.kv_groups),
            "total_pages": ready.total_pages,
            "page_tokens": model.page_tokens,
            "kv_tokens": tokens,
            "full_length_sequences": full_length_sequences(ready),
        },
    )
    times = ready.step_times
    log.info("step times", extra={"measured": steps_in_words(times), **({} if times is None else asdict(times))})
    host, port = listening.getsockname()[:2]
    log.info("serving", extra={"url": f"http://{host}:{port}/v1", "host": host, "port": port})


def full_length_sequences(ready: Ready) -> int:
    """Sequences at the full context that have room at one time: each takes whole pages."""
    one = -(-ready.model.max_tokens // ready.model.page_tokens)
    return ready.total_pages // max(1, one)


def arithmetic(ready: Ready) -> str:
    """Where the memory goes, in a sentence that adds up."""
    memory, model = ready.memory, ready.model
    tokens = ready.total_pages * model.page_tokens
    pages = f"{ready.total_pages} pages and a dummy of {_mib(memory.get('page_bytes', 0))} each"
    return (
        f"{_mib(memory.get('weights_bytes', 0))} of weights and {_mib(memory.get('pool_bytes', 0))} of KV ({pages}): "
        f"{tokens} tokens, {full_length_sequences(ready)} sequences at the full {model.max_tokens}; a step needs "
        f"{_mib(memory.get('working_bytes', 0))} besides; the limit is {_mib(memory.get('limit_bytes', 0))}, of which "
        f"{_mib(memory.get('used_bytes', 0))} were in use when the pool was made"
    )


def steps_in_words(times: StepTimes | None) -> str:
    """What a step takes, in a sentence; None: it could not be told."""
    if times is None:
        return (
            "what a step takes could not be told at the start, since too few steps were possible in the time for it or "
            "within the limits: it will be learnt from the steps of requests"
        )
    return (
        f"a step takes {times.fixed_s * 1e3:.3g} ms, {times.sequence_s * 1e6:.3g} us for each sequence that decodes, "
        f"{times.prefill_token_s * 1e6:.3g} us for each prompt token; by {times.steps} steps measured at the start"
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.2f} MiB"


def listen(settings: Settings) -> socket.socket:
    """A bound socket. Raises OSError where the address cannot be used."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
