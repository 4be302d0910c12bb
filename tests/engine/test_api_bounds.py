"""Promised deadlines at the bound itself: the API process over a core in the same loop, on a clock that leaps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from headrace.testing.leaping import Inline, LeapingLoop
from headrace.testing.tiny_tokenizer import VOCABULARY, tiny_bundle
from headrace_engine.api.app import App
from headrace_engine.api.client import CoreLink
from headrace_engine.api.drain import Drain
from headrace_engine.api.metrics import Metrics
from headrace_engine.api.parts import Parts, Threads
from headrace_engine.api.server import EXIT_CORE_DIED, Ended, Engine, Settings, listen
from headrace_engine.config import EngineConfig
from headrace_engine.core import messages
from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.loop import Loop
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.fake import FakeRunner, fake_kv
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import ModelInfo
from headrace_wire.shape import ModelShape

T = TypeVar("T")
CONTEXT, PAGES = 2048, 64
STEP_S = 0.9  # a slow model's step
EXIT_S, FREED_S = 2.0, 1.0  # what engine/PROTOCOL.md promises
CONFIG = EngineConfig(path="none", served_name="m", max_sequences=1, max_batch_tokens=64)
MODEL = ModelInfo(name="m", max_tokens=CONTEXT, max_sequences=1)
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=1,
    hidden=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    intermediate=8,
    vocab=VOCABULARY,
    max_positions=CONTEXT,
)
READY = messages.Ready(model=MODEL, shape=SHAPE, memory={}, kv_groups=[], total_pages=PAGES, cache_root="ab" * 32)


def nowhere(config: EngineConfig, inbound: str, outbound: str) -> None:
    raise AssertionError("no core is started")


class LocalLink(CoreLink):
    """A link whose core, with the fake runner, takes turns on the same loop; each step takes `STEP_S` of its clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        super().__init__(CONFIG, nowhere, loop.time)
        limits = Limits(max_sequences=1, max_batch_tokens=64, max_tokens=CONTEXT, vocab=VOCABULARY)
        kv = fake_kv(PAGES)
        reporter = Reporter(Identity(MODEL, kv, "local"))
        self.scheduler = Scheduler(limits, BlockPool(PAGES), reporter.cache_root)
        self._core = Loop(self.scheduler, FakeRunner(0, kv), self, reporter, loop.time)
        self._handle: Any = self._core._handle

    async def start(self) -> messages.Ready:
        self._process = self  # type: ignore[assignment]  it is alive
        self.ready = READY
        self._tasks = [asyncio.create_task(self._turns())]
        return READY

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def receive(self, timeout_s: float) -> list[messages.ToCore]:
        """Messages are handled between the steps, by `_turns`."""
        return []

    def send(self, message: messages.FromCore) -> None:
        self._take(self._encoder.encode(message))

    async def _turns(self) -> None:
        while True:
            waiting = [await self._outgoing.get()] if not self.scheduler.busy else []
            while not self._outgoing.empty():
                waiting.append(self._outgoing.get_nowait())
            deltas = [delta for message in waiting for delta in self._handle(message)]
            if deltas:
                self.send(messages.Deltas(items=deltas))
            await asyncio.sleep(STEP_S)
            self._core.turn()


class Client:
    """One request on raw ASGI; `leave` is the connection's end."""

    def __init__(self, app: App, **fields: Any):
        self.sent: list[Any] = []
        self._gone = asyncio.Event()
        self._body: bytes | None = json.dumps({"model": "m", "ignore_eos": True, **fields}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Any:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@asynccontextmanager
async def serving(tokenizer: ChatTokenizer | None = None) -> Any:
    loop = asyncio.get_running_loop()
    link = LocalLink(loop)
    app: App
    metrics = Metrics(lambda: link.state, lambda: app.generate.open)
    drain = Drain(link, lambda: app.generate.open, 30.0)
    inline = Inline()
    parts = Parts(link, tokenizer or ChatTokenizer(tiny_bundle()), metrics, drain, Threads(inline, inline), "m")
    app = App(parts, loop.time, 0.0, "")
    await link.start()
    try:
        yield app, link
    finally:
        await link.stop()


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(main)


async def until(met: Callable[[], bool], limit_s: float) -> float:
    """Seconds until it is so."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not met():
        assert loop.time() - began <= limit_s, f"not within {limit_s} s"
        await asyncio.sleep(0.01)
    return loop.time() - began


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("state", ["queue", "prefill", "decode"])
def test_a_client_that_leaves_frees_everything_within_a_second(state: str, stream: bool) -> None:
    """Or, where a step takes longer than that, when the step in flight has ended: here it takes nearly the second."""

    async def main() -> None:
        async with serving() as (app, link):
            core: Scheduler = link.scheduler
            first = Client(app, prompt="a", max_tokens=1000) if state == "queue" else None
            if first is not None:
                await until(lambda: len(core.running) == 1, 10)
            size = 1900 if state == "prefill" else 10
            client = Client(app, prompt="b" * size, max_tokens=100, stream=stream)
            held: dict[str, Callable[[], bool]] = {
                "queue": lambda: len(core.waiting) == 1,
                "prefill": lambda: any(64 <= seq.computed < 1900 for seq in core.running),
                "decode": lambda: any(seq.known > seq.prompt for seq in core.running),
            }
            await until(held[state], 30)
            await asyncio.sleep(STEP_S / 9)  # somewhere inside a step
            client.leave()
            left = 0 if first is None else 1
            gone = await until(lambda: len(core.running) + len(core.waiting) == left, FREED_S)
            assert gone <= FREED_S
            assert link.open_choices == left
            assert client.task.done()
            if first is not None:
                first.leave()
                await until(lambda: not core.running, FREED_S)
            assert core.pool.available == core.pool.total
            assert app.generate.open == 0

    run(main())


@pytest.mark.parametrize("open_requests", [0, 3], ids=["idle", "streams-that-do-not-end"])
def test_a_dead_core_ends_the_process_within_two_seconds(open_requests: int) -> None:
    """Even where a client never takes its error event."""

    async def main() -> tuple[Ended, float]:
        loop = asyncio.get_running_loop()
        settings = Settings("127.0.0.1", 0, 30.0)
        listening = listen(settings)
        engine = Engine(CONFIG, settings, ChatTokenizer(tiny_bundle()), nowhere)
        link = engine.link = LocalLink(loop)
        engine.app.generate.open = open_requests
        running = asyncio.create_task(engine.run(listening))
        await until(lambda: link.ready is not None, 10)
        link.died.set()
        link.failed = messages.Failed(reason="EngineFailed", message="killed")
        died = loop.time()
        return await running, loop.time() - died

    ended, took = run(main())
    assert (ended.code, ended.failed and ended.failed.reason) == (EXIT_CORE_DIED, "EngineFailed")
    assert took <= EXIT_S


def test_a_request_that_fails_takes_only_itself_down() -> None:
    """An error that nobody foresaw, in the middle of another's stream."""

    class Broken(ChatTokenizer):
        def encode_text(self, text: str, *, special: bool = True) -> list[int]:
            if text == "broken":
                raise ZeroDivisionError("unforeseen")
            return super().encode_text(text, special=special)

    async def main() -> None:
        async with serving(Broken(tiny_bundle())) as (app, _):
            stream = Client(app, prompt="a", max_tokens=5, stream=True)
            await until(lambda: bool(stream.sent), 10)
            broken = Client(app, prompt="broken")
            await broken.task
            await stream.task
            after = Client(app, prompt="b", max_tokens=1)
            await after.task
        assert broken.sent[0]["status"] == 500
        error = json.loads(broken.sent[1]["body"])["error"]
        assert (error["code"], error["message"]) == ("internal_error", "the engine failed on this request")
        assert b"[DONE]" in b"".join(message.get("body", b"") for message in stream.sent)
        assert after.sent[0]["status"] == 200

    run(main())


def test_a_step_in_flight_delays_no_more_than_itself() -> None:
    """The least that can be said of freeing: an abort is acted on before the step after it."""

    async def main() -> None:
        async with serving() as (app, link):
            client = Client(app, prompt="b", max_tokens=500)
            await until(lambda: any(seq.known > seq.prompt for seq in link.scheduler.running), 10)
            client.leave()
            assert await until(lambda: not link.scheduler.running, 10) <= STEP_S + 0.02

    run(main())
