"""The API process's end of the link: starts the core, sends Submits, hands Deltas to mailboxes, sees the core die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from headrace_engine.api.mailbox import Mailbox, failure
from headrace_engine.api.schema import invalid
from headrace_engine.config import EngineConfig
from headrace_engine.core import messages
from headrace_wire.protocol import Abort, Delta, EngineState, Submit
from headrace_wire.reasons import Reason, RequestError

log = logging.getLogger(__name__)

Target = Callable[[EngineConfig, str, str], None]
Clock = Callable[[], float]
_JOIN_S = 3.0  # that a stopped core has to end before it is killed
MAILBOX_BYTES = 128 << 10  # deltas that may wait for one client: about 500 events


class CoreFailed(Exception):
    """The core ended before it was ready."""

    def __init__(self, failed: messages.Failed):
        super().__init__(failed.message)
        self.failed = failed


@dataclass
class Progress:
    """When the core last did anything for anybody (s), and what its reports looked like then."""

    at: float = 0.0
    heard_at: float = 0.0  # any message
    seen: tuple[int, ...] = ()

    def report(self, state: EngineState, now: float) -> None:
        """Counts as progress only if the queues moved."""
        seen = (state.queued_tokens, state.running, state.waiting, state.preemptions)
        if seen != self.seen:
            self.seen, self.at = seen, now


class CoreLink:
    """Lives on one event loop. `start`, then `open` a mailbox for each request, then `stop`."""

    def __init__(self, config: EngineConfig, target: Target, clock: Clock, *, mailbox_bytes: int = MAILBOX_BYTES):
        self._config = config
        self._target = target
        self._clock = clock
        self._mailbox_bytes = mailbox_bytes
        self._boxes: dict[str, Mailbox] = {}  # by id of the choice
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._process: BaseProcess | None = None
        self._ready: asyncio.Future[messages.Ready] | None = None
        self._encoder = messages.encoder()
        self._decoder = messages.from_core_decoder()
        self._stopping = False
        self._resets: deque[asyncio.Future[int]] = deque()  # of the cache, not yet reported by the core
        self._epochs_seen = 0
        self.on_delta: Callable[[Mailbox, Delta, float], None] | None = None
        self.ready: messages.Ready | None = None
        self.state: EngineState | None = None
        self.failed: messages.Failed | None = None
        self.died = asyncio.Event()  # the core ended without being asked to
        self.progress = Progress()

    @property
    def open_choices(self) -> int:
        """Choices whose terminal delta has not come."""
        return len(self._boxes)

    @property
    def alive(self) -> bool:
        """True while the core's process runs."""
        return self._process is not None and not self.died.is_set()

    @property
    def pid(self) -> int | None:
        """Process id of the core."""
        return None if self._process is None else self._process.pid

    async def start(self) -> messages.Ready:
        """Spawns the core and waits until it has loaded the model. Raises CoreFailed."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._folder = tempfile.mkdtemp(prefix="headrace-")  # 0700: only this user reaches the sockets
        inbound, outbound = f"ipc://{self._folder}/in", f"ipc://{self._folder}/out"
        self._context = zmq.asyncio.Context()
        self._push = self._socket(zmq.PUSH, inbound)
        self._pull = self._socket(zmq.PULL, outbound)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=self._target, args=(self._config, inbound, outbound), daemon=True)
        self._process.start()
        loop.add_reader(self._process.sentinel, self._ended)
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        self.ready = await self._ready
        return self.ready

    def _socket(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket: zmq.asyncio.Socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        return socket

    @contextlib.contextmanager
    def open(self, submits: list[Submit], overflow: Callable[[], object]) -> Iterator[Mailbox]:
        """Sends the Submits; on the way out, whatever the way, choices that still run are aborted.

        Raises RequestError when an id is in use or the core is gone.
        """
        if not self.alive or self.ready is None:
            raise failure(Reason.ENGINE_FAILED)
        ids = [submit.id for submit in submits]
        if any(identity in self._boxes for identity in ids):
            raise invalid("headrace.id", "is in use by a running request")
        now = self._clock()
        if not self._boxes:
            self.progress.at = now
        box = Mailbox(ids, self._mailbox_bytes, overflow, now)
        self._boxes.update(dict.fromkeys(ids, box))
        try:
            for submit in submits:
                self._outgoing.put_nowait(submit)
            yield box
        finally:
            box.close()
            if box.unfinished:  # their ids stay taken until the core has confirmed their end
                self.abort(sorted(box.unfinished), Reason.SLOW_READER if box.overflowed else Reason.CANCELLED)

    def abort(self, ids: list[str], reason: Reason) -> None:
        """Ends these choices; each gets a terminal delta with the reason."""
        self._outgoing.put_nowait(Abort(ids=ids, reason=reason))

    def abort_all(self, reason: Reason) -> None:
        """Ends every request."""
        if self._boxes:
            self.abort(list(self._boxes), reason)

    def drain(self) -> None:
        """The core takes nothing new."""
        self._outgoing.put_nowait(messages.Control(kind="drain"))

    async def reset_cache(self) -> int:
        """Forgets every cached prefix; the new epoch, once the core reports it. Raises RequestError."""
        if self.died.is_set():
            raise failure(Reason.ENGINE_FAILED)
        if self.ready is None:
            raise RequestError(Reason.NO_CAPACITY, "the model is still being loaded", retry_after=1.0)
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._resets.append(begun)
        self._outgoing.put_nowait(messages.Control(kind="reset_cache"))
        return await begun

    def _epoch(self, epoch: int) -> None:
        """The core reports this epoch: it grows by one a reset, and resets are in order."""
        while self._resets and self._epochs_seen < epoch:
            self._epochs_seen += 1
            begun = self._resets.popleft()
            if not begun.done():
                begun.set_result(self._epochs_seen)

    async def stop(self) -> None:
        """Ends the core, by force if it does not end by itself, and removes the sockets."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        asyncio.get_running_loop().remove_reader(process.sentinel)
        if process.is_alive():
            self._outgoing.put_nowait(messages.Control(kind="stop"))
            await asyncio.to_thread(process.join, _JOIN_S)
        if process.is_alive():
            process.kill()
            await asyncio.to_thread(process.join)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close()

    def _close(self) -> None:
        for socket in (self._push, self._pull):
            socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _send(self) -> None:
        while True:
            await self._push.send(self._encoder.encode(await self._outgoing.get()))

    async def _receive(self) -> None:
        while True:
            self._take(await self._pull.recv())
            await asyncio.sleep(0)  # a fast core must not keep the loop to itself

    def _take(self, frame: bytes) -> None:
        try:
            message = self._decoder.decode(frame)
        except msgspec.DecodeError as error:
            log.error("message of the core refused", extra={"error": str(error)})
            return
        now = self.progress.heard_at = self._clock()
        match message:
            case messages.Deltas():
                self.progress.at = now
                for delta in message.items:
                    self._deliver(delta, now)
            case messages.StateReport():
                self.state = message.state
                self._epoch(message.state.epoch)
                self.progress.report(message.state, now)
            case messages.Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case messages.Failed():
                self.failed = message

    def _deliver(self, delta: Delta, now: float) -> None:
        box = self._boxes.get(delta.id)
        if box is None:
            return
        if delta.finish is not None or delta.error is not None:
            del self._boxes[delta.id]
        if self.on_delta is not None and not box.closed:
            self.on_delta(box, delta, now)
        box.put(delta)

    def _ended(self) -> None:
        """The core's process has ended: take its last words, then fail whoever waits."""
        process = self._process
        if process is None:
            return
        asyncio.get_running_loop().remove_reader(process.sentinel)
        with contextlib.suppress(zmq.Again):
            while True:
                self._take(zmq.Socket.shadow(self._pull.underlying).recv(zmq.NOBLOCK))
        process.join(0.5)  # its files are closed: it is in its last milliseconds
        if self._stopping:
            return
        words = self.failed or messages.Failed(
            reason="EngineFailed", message=f"the core ended with exit code {process.exitcode}"
        )
        self.failed = words
        log.error("core ended", extra={"reason": words.reason, "code": process.exitcode})
        self.died.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(CoreFailed(words))
        for box in set(self._boxes.values()):
            box.fail(failure(Reason.ENGINE_FAILED))
        for begun in self._resets:
            if not begun.done():
                begun.set_exception(failure(Reason.ENGINE_FAILED))
