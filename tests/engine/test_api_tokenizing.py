"""Tokenizing never holds up the event loop, nor do long prompts hold up short ones."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from headrace.testing.engine_process import EngineProcess
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_engine.api.parts import LONG_BYTES, Parts, Threads
from headrace_engine.api.prepare import prepare
from headrace_engine.api.tokens import Tokens
from headrace_engine.fetch.fetch import DEMO
from headrace_wire.chat import ChatTokenizer
from headrace_wire.reasons import Reason, RequestError

LIMIT_S = 30.0
PROMISE_S = 0.05  # that a prompt of 100,000 characters may delay a stream by
LATE_S = 10 * PROMISE_S  # by the clock, on a loaded machine
WORDS = "What does the scheduler do with a long prompt? "
LONG_TEXT = WORDS * (100_000 // len(WORDS))


class Held(ChatTokenizer):
    """Encoding a text with `slow` in it waits until the event loop lets it go on."""

    def __init__(self) -> None:
        super().__init__(tiny_bundle())
        self.go_on = threading.Event()
        self.entered = threading.Event()
        self.threads: set[str] = set()

    def _encode(self, text: str, *, special: bool, param: str) -> list[int]:
        self.threads.add(threading.current_thread().name.rpartition("_")[0])
        if "slow" in text:
            self.entered.set()
            assert self.go_on.wait(LIMIT_S), "the event loop did not go on"
        return super()._encode(text, special=special, param=param)


@pytest.fixture
def pools() -> Iterator[Threads]:
    short, long = ThreadPoolExecutor(1, "short"), ThreadPoolExecutor(1, "long")
    yield Threads(short, long)
    for pool in (short, long):
        pool.shutdown()


def parts_of(tokenizer: ChatTokenizer, threads: Threads) -> Parts:
    """As much of an engine as preparing a request needs."""
    shape, model = SimpleNamespace(vocab=5000), SimpleNamespace(max_tokens=1 << 20)
    ready = SimpleNamespace(model=model, total_pages=1 << 16, shape=shape)
    link: Any = SimpleNamespace(ready=ready, died=asyncio.Event())
    drain: Any = SimpleNamespace(begun=asyncio.Event())
    metrics: Any = None
    return Parts(link, tokenizer, metrics, drain, threads, "m")


def body(route: str, text: str) -> bytes:
    prompt = {"messages": [{"role": "user", "content": text}]} if route == "chat" else {"prompt": text}
    return json.dumps({"model": "m", **prompt}).encode()


async def answered(parts: Parts, route: str, text: str) -> None:
    data = body(route, text)
    if route != "tokenize":
        assert (await prepare(parts, data, chat=route == "chat")).tokens > 0
        return
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data}

    async def send(message: Any) -> None:
        sent.append(message)

    await Tokens(parts).tokenize({"headers": []}, receive, send)
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("size", [10, 2 * LONG_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("route", ["chat", "complete", "tokenize"])
def test_the_loop_goes_on_while_a_prompt_is_tokenized(route: str, size: int, pools: Threads) -> None:
    """Were it on the loop, nobody could let it go on."""

    async def main() -> Held:
        tokenizer = Held()
        work = asyncio.create_task(answered(parts_of(tokenizer, pools), route, "slow " + "x" * size))
        while not tokenizer.entered.is_set():  # noqa: ASYNC110  a thread tells nobody
            await asyncio.sleep(0.001)
        tokenizer.go_on.set()
        await asyncio.wait_for(work, LIMIT_S)
        return tokenizer

    assert asyncio.run(main()).threads == {"long" if size > LONG_BYTES else "short"}


def test_short_prompts_do_not_queue_behind_a_long_one(pools: Threads) -> None:
    async def main() -> None:
        tokenizer = Held()
        parts = parts_of(tokenizer, pools)
        slow = asyncio.create_task(answered(parts, "complete", "slow " * LONG_BYTES))
        while not tokenizer.entered.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.wait_for(answered(parts, "chat", "quick"), LIMIT_S)
        assert not slow.done()
        tokenizer.go_on.set()
        await asyncio.wait_for(slow, LIMIT_S)

    asyncio.run(main())


def test_a_refusal_inside_the_thread_is_the_callers(pools: Threads) -> None:
    async def main() -> None:
        parts = parts_of(Held(), pools)
        for data in (b"{" * (2 * LONG_BYTES), body("complete", "x" * 3 * LONG_BYTES).replace(b'"prompt"', b'"promt"')):
            with pytest.raises(RequestError) as caught:
                await prepare(parts, data, chat=False)
            assert caught.value.reason is Reason.INVALID_REQUEST

    asyncio.run(main())


@pytest.mark.parametrize("route", ["chat", "complete", "tokenize"])
def test_a_prompt_of_100_000_characters_costs_the_loop_less_than_is_promised(route: str, pools: Threads) -> None:
    """The promise itself, in CPU time of the loop's thread: a loaded machine does not change it."""

    async def main() -> float:
        parts = parts_of(ChatTokenizer.from_folder(DEMO), pools)
        await answered(parts, route, "warm")
        began = time.thread_time()
        await answered(parts, route, LONG_TEXT)
        return time.thread_time() - began

    assert asyncio.run(main()) < PROMISE_S


def test_encoding_leaves_the_interpreter_to_others() -> None:
    """While a thread encodes a million characters, this one is never kept from running for long."""
    tokenizer = ChatTokenizer.from_folder(DEMO)
    done = threading.Event()
    counts: list[int] = []

    def encode() -> None:
        counts.append(len(tokenizer.encode_text(LONG_TEXT * 10)))
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    late, turns, last = 0.0, 0, time.perf_counter()
    while not done.is_set():
        now = time.perf_counter()
        late, last, turns = max(late, now - last), now, turns + 1
    thread.join()
    assert counts[0] > 100_000
    assert turns > 1000
    assert late < LATE_S


def test_a_stream_goes_on_while_a_prompt_of_100_000_characters_is_tokenized(demo_engine: EngineProcess) -> None:
    """A real process at ten times the promise, over what its tokens take when nothing else is asked.

    A loop that tokenizes stalls each time; a machine that is busy otherwise does not stall one of each pair, five
    times in a row.
    """

    async def main() -> tuple[float, float]:
        async with httpx.AsyncClient(base_url=demo_engine.url, timeout=60) as client:
            for _ in range(5):
                alone = await _largest_gap(client, None)
                beside = await _largest_gap(client, LONG_TEXT)
                if beside < alone + LATE_S:
                    break
            return alone, beside

    alone, beside = asyncio.run(main())
    assert beside < alone + LATE_S


async def _largest_gap(client: httpx.AsyncClient, text: str | None) -> float:
    """Seconds between events of a stream, from the time that a text is sent until its tokens are told."""
    asked: dict[str, Any] = {
        "model": "demo",
        "prompt": "TTFT is",
        "max_tokens": 1800,
        "ignore_eos": True,
        "temperature": 1,
        "seed": 1,
    }
    counted: asyncio.Task[httpx.Response] | None = None
    gaps: list[float] = []
    async with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
        last = time.perf_counter()
        async for _ in stream.aiter_raw():
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
            if len(gaps) == 20 and text is not None:
                counted = asyncio.create_task(client.post("/tokenize", json={"model": "demo", "prompt": text}))
            if len(gaps) >= 200 and (counted is None or counted.done()):
                break
    if counted is not None:
        assert (await counted).json()["count"] > 10_000
    return max(gaps[20:])
