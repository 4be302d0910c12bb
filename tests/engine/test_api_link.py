"""The API process beside cores that misbehave: each is a real child process behind the real link."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.api.client import CoreFailed, CoreLink
from headrace_engine.api.health import Health, Readiness, health, readiness
from headrace_engine.api.mailbox import Mailbox
from headrace_engine.api.server import Ended, Engine, Settings, listen
from headrace_engine.config import EngineConfig
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Sampling, Submit
from headrace_wire.reasons import Reason, RequestError

CONFIG = EngineConfig(path="none", served_name="m")
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spawned child imports its target by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "cores"))


def core(name: str) -> Callable[[EngineConfig, str, str], None]:
    import scripted_core  # type: ignore[import-not-found]

    target: Callable[[EngineConfig, str, str], None] = getattr(scripted_core, name)
    return target


def submit(identity: str, max_tokens: int = 5) -> Submit:
    return Submit(id=identity, tokens=b"\1\0\0\0", sampling=Sampling(), max_tokens=max_tokens)


@asynccontextmanager
async def linked(name: str, **settings: Any) -> AsyncIterator[CoreLink]:
    link = CoreLink(CONFIG, core(name), time.monotonic, **settings)
    try:
        await asyncio.wait_for(link.start(), LIMIT_S)
        yield link
    finally:
        await link.stop()


async def until(met: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    async with asyncio.timeout(limit_s):
        while not met():  # noqa: ASYNC110  state of another process
            await asyncio.sleep(0.01)


async def finished(box: Mailbox) -> list[int]:
    tokens: list[int] = []
    while True:
        for _, delta in await box.get():
            tokens += delta.tokens
            if delta.finish is not None:
                return tokens


def test_requests_get_their_own_tokens() -> None:
    async def main() -> None:
        async with linked("fast") as link:
            with link.open([submit("a", 3)], lambda: None) as a, link.open([submit("b", 7)], lambda: None) as b:
                assert await asyncio.gather(finished(a), finished(b)) == [[65] * 3, [65] * 7]
            assert link.open_choices == 0

    asyncio.run(main())


def test_an_id_stays_taken_until_its_end_is_confirmed() -> None:
    async def main() -> None:
        async with linked("fast") as link:
            with link.open([submit("a", 10**6)], lambda: None) as box:
                await box.get()
                with pytest.raises(RequestError) as caught, link.open([submit("a")], lambda: None):
                    pass
                assert caught.value.param == "headrace.id"
            await until(lambda: link.open_choices == 0)
            with link.open([submit("a", 2)], lambda: None) as box:
                assert await finished(box) == [65, 65]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [("refuses_to_start", "OutOfMemory", "no room"), ("vanishes", "EngineFailed", "exit code 9")],
)
def test_a_core_that_does_not_start_is_explained(name: str, reason: str, words: str) -> None:
    async def main() -> None:
        with pytest.raises(CoreFailed) as caught:
            async with linked(name):
                pass
        assert caught.value.failed.reason == reason
        assert words in caught.value.failed.message

    asyncio.run(main())


def test_no_progress_while_work_is_pending_is_red() -> None:
    async def main() -> None:
        async with linked("stalls") as link:
            await until(lambda: link.state is not None)
            assert health(link, time.monotonic() + 1000) is Health.OK  # nothing pending
            with link.open([submit("a")], lambda: None):
                assert health(link, time.monotonic()) is Health.OK
                await until(lambda: health(link, time.monotonic(), stall_s=0.3) is Health.STALLED)
            assert readiness(link, draining=False) is Readiness.READY

    asyncio.run(main())


def test_a_stalled_core_is_killed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_engine.api.client._JOIN_S", 0.2)

    async def main() -> None:
        async with linked("deaf") as link:
            assert link.alive
        assert not multiprocessing.active_children()

    asyncio.run(main())


def test_nonsense_from_the_core_harms_nobody() -> None:
    async def main() -> None:
        async with linked("babbles") as link:
            with link.open([submit("a")], lambda: None) as box:
                assert [delta.tokens for _, delta in await box.get()] == [[65]]
                with pytest.raises(RequestError) as caught:
                    await box.get()
            assert caught.value.reason is Reason.OUT_OF_MEMORY

    asyncio.run(main())


def test_a_mailbox_that_nobody_reads_is_cancelled() -> None:
    async def main() -> None:
        overflowed = asyncio.Event()
        async with linked("fast", mailbox_bytes=5000) as link:
            with link.open([submit("slow", 10**6)], overflowed.set), link.open([submit("b", 300)], lambda: None) as b:
                assert len(await finished(b)) == 300
                await asyncio.wait_for(overflowed.wait(), LIMIT_S)
            await until(lambda: link.open_choices == 0)

    asyncio.run(main())


@asynccontextmanager
async def serving(name: str, stream_bytes: int) -> AsyncIterator[tuple[Engine, int]]:
    """A whole API process in this one, with small socket buffers."""
    settings = Settings("127.0.0.1", 0, 5.0, stream_bytes)
    listening = listen(settings)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    engine = Engine(CONFIG, settings, ChatTokenizer(tiny_bundle()), core(name))
    running: asyncio.Task[Ended] = asyncio.create_task(engine.run(listening))
    try:
        await until(lambda: engine.link.ready is not None)
        yield engine, listening.getsockname()[1]
    finally:
        engine.stop()
        assert (await asyncio.wait_for(running, LIMIT_S)).code == 0


def test_a_client_that_does_not_read_is_cancelled_and_others_go_on() -> None:
    body = b'{"model":"m","prompt":"x","max_tokens":1000000,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def main() -> None:
        async with serving("fast", stream_bytes=20_000) as (engine, port):
            with socket.socket() as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                raw.connect(("127.0.0.1", port))
                raw.sendall(head + body)
                await until(lambda: engine.app.generate.open == 1)
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as client:
                    short = {"model": "m", "prompt": "x", "max_tokens": 50}
                    assert (await client.post("/v1/completions", json=short)).status_code == 200
                    await until(lambda: engine.app.generate.open == 0)
                    await until(lambda: engine.link.open_choices == 0)
                    metrics = (await client.get("/metrics")).text
                    assert 'headrace_engine_requests_total{outcome="slow_reader"} 1.0' in metrics

    asyncio.run(main())


def test_a_reset_of_the_cache_fails_with_the_core() -> None:
    """It waits for the core's word; where the core dies instead, and before it is ready, it says so."""

    async def main() -> None:
        early = CoreLink(CONFIG, core("deaf"), time.monotonic)
        with pytest.raises(RequestError) as caught:
            await early.reset_cache()
        assert caught.value.reason is Reason.NO_CAPACITY
        async with linked("deaf") as link:
            waiting = asyncio.create_task(link.reset_cache())
            await asyncio.sleep(0)
            assert link.pid is not None
            os.kill(link.pid, signal.SIGKILL)
            with pytest.raises(RequestError) as caught:
                await asyncio.wait_for(waiting, LIMIT_S)
            assert caught.value.reason is Reason.ENGINE_FAILED
            with pytest.raises(RequestError):
                await link.reset_cache()

    asyncio.run(main())
