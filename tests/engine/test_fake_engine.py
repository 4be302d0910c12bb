"""The fake engine: what it honours beside the contract, and that it ends when told to, whatever it is doing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_scheduler import Scheduler, Sequence, Speed

LIMIT_S = 10.0


async def drained(scheduler: Scheduler, sequence: Sequence) -> None:
    async for _ in scheduler.tokens(sequence):
        pass


@pytest.mark.parametrize("turns", range(6))
def test_a_cancel_that_meets_a_free_slot_is_not_lost(turns: int) -> None:
    """The first leaves its slot; the second is cancelled that many turns of the loop later, before a slow prefill."""

    async def main() -> None:
        scheduler = Scheduler(1, 100, Speed(prefill_tokens_per_s=0.001))
        first, second = (Sequence([1] * 50, [1], 5, left_s=60) for _ in range(2))
        running = asyncio.create_task(drained(scheduler, first))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(drained(scheduler, second))
        while not scheduler.waiting:  # noqa: ASYNC110  the scheduler tells nobody
            await asyncio.sleep(0)
        running.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, LIMIT_S)
        assert not scheduler.running
        assert not scheduler.waiting

    asyncio.run(main())


async def _send(port: int, body: dict[str, Any]) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps({"model": "m", **body}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("leaving", [0, 1, 3], ids=lambda count: f"{count}-leave")
def test_stopping_does_not_wait_for_a_slow_prefill(stream: bool, leaving: int) -> None:
    async def main() -> None:
        engine = await FakeEngine(model="m", max_sequences=1, prefill_tokens_per_s=0.001).start()
        body = {"prompt": "x" * 50, "stream": stream, "headrace": {"left_ms": 60_000}}
        writers = [await _send(engine.port, body) for _ in range(4)]
        while len(engine.seen) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for writer in writers[:leaving]:
            writer.transport.abort()
        await asyncio.wait_for(engine.stop(), LIMIT_S)
        assert not engine.scheduler.running
        for writer in writers[leaving:]:
            writer.close()

    asyncio.run(main())


def test_an_idle_connection_does_not_hold_it() -> None:
    async def main() -> None:
        engine = await FakeEngine(model="m").start()
        async with httpx.AsyncClient(base_url=engine.url) as client:
            assert (await client.get("/health")).status_code == 200
            await asyncio.wait_for(engine.stop(), LIMIT_S)

    asyncio.run(main())


HONOURED: dict[str, tuple[dict[str, Any], str, str]] = {
    "as-it-is": ({}, "abc", "stop"),
    "least-output": ({"min_tokens": 5}, "abcab", "stop"),
    "stop-id": ({"stop_token_ids": [65]}, "a", "stop"),  # b is id 65
    "kept-stop-id": ({"stop_token_ids": [65], "include_stop_str_in_output": True}, "ab", "stop"),
    "stop-id-too-early": ({"stop_token_ids": [65], "min_tokens": 2}, "abc", "stop"),
    "kept-stop": ({"stop": "b", "include_stop_str_in_output": True}, "ab", "stop"),
    "special": ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "abc<|im_end|>", "stop"),
    "always": ({"logit_bias": {"65": 100}, "max_tokens": 3}, "bbb", "length"),
    "never": ({"logit_bias": {"65": -100}}, "ac", "stop"),
    "nothing": ({"echo": True, "max_tokens": 0}, "abc", "length"),
    "echo": ({"echo": True, "max_tokens": 1}, "abca", "length"),
    "taken": (
        {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1, "top_k": 3},
        "abc",
        "stop",
    ),
}


@pytest.mark.parametrize(("fields", "text", "finish"), HONOURED.values(), ids=HONOURED)
def test_fields_are_honoured(fields: dict[str, Any], text: str, finish: str) -> None:
    async def main() -> None:
        async with (
            FakeEngine(model="m", tokens_per_s=float("inf")) as engine,
            httpx.AsyncClient(base_url=engine.url, timeout=LIMIT_S) as client,
        ):
            whole = await client.post("/v1/completions", json={"model": "m", "prompt": "abc", **fields})
            choice = whole.json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (text, finish)
            streamed = await client.post(
                "/v1/completions", json={"model": "m", "prompt": "abc", "stream": True, **fields}
            )
            events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
            assert "".join(event["choices"][0]["text"] for event in events) == text

    asyncio.run(main())
