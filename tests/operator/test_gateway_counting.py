"""Counting prompts: nobody's prompts keep another tenant's waiting, and no count outlasts a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from headrace.gateway import counting
from headrace.gateway.body import Body, CompletionBody
from headrace.gateway.counting import AT_ONCE, Counter, Counting, takes_long
from headrace.gateway.upstream import Pool
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import FakeGateway, eventually, make_tenant, make_world, serving, set_engines
from headrace_wire.chat import ChatTokenizer

CHAT = "/v1/chat/completions"
LONG = "word " * 300
NO_TOKENIZER = cast(ChatTokenizer, None)  # `Slow` needs none


class Slow:
    """Counts that last until they are let go; `began` are the prompts in the order in which they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.began: list[str] = []
        self.let_go = threading.Event()
        monkeypatch.setattr(counting, "count", self.count)

    def count(self, _: ChatTokenizer, body: Body, context: int | None) -> list[int]:
        """In a thread."""
        prompt = body.prompt if isinstance(body, CompletionBody) else str(body.messages[0].content)
        self.began.append(str(prompt)[:5])
        if str(prompt)[:5] != "quick":
            self.let_go.wait(20)
        return [7]

    async def wait_for(self, count: int) -> None:
        """So many have begun."""

        async def begun() -> bool:
            return len(self.began) >= count

        await eventually(begun)


def plain(prompt: str) -> CompletionBody:
    return CompletionBody(model="m", prompt=prompt)


def start(counter: Counter, prompt: str, tenant: str) -> asyncio.Task[list[int]]:
    return asyncio.create_task(counter.count(NO_TOKENIZER, Counting(plain(prompt), AT_ONCE + 1, ("team-a", tenant))))


def test_a_tenant_takes_one_thread_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        counter, slow = Counter(Pool(1.0)), Slow(monkeypatch)
        greedy = [start(counter, f"slow{i}", "greedy") for i in range(4)]
        await slow.wait_for(1)
        async with asyncio.timeout(5):
            assert await start(counter, "quick", "other") == [7]
        assert slow.began == ["slow0", "quick"]
        slow.let_go.set()
        assert await asyncio.gather(*greedy) == [[7]] * 4
        assert slow.began[2:] == ["slow1", "slow2", "slow3"], "in the order in which they came"
        counter.close()

    asyncio.run(main())


def test_a_count_whose_caller_left_keeps_its_tenants_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        counter, slow = Counter(Pool(1.0)), Slow(monkeypatch)
        left = start(counter, "slow0", "greedy")
        await slow.wait_for(1)
        waits, gone = start(counter, "slow1", "greedy"), start(counter, "slow2", "greedy")
        left.cancel()
        gone.cancel()
        await asyncio.gather(left, gone, return_exceptions=True)
        assert await start(counter, "quick", "other") == [7]
        assert slow.began == ["slow0", "quick"], "the thread is still busy with what nobody waits for"
        slow.let_go.set()
        assert await waits == [7]
        assert slow.began == ["slow0", "quick", "slow1"], "what was given up before its turn is not counted"
        counter.close()

    asyncio.run(main())


def test_token_ids_are_counted_already() -> None:
    ids = CompletionBody(model="m", prompt=[1] * 1000)
    assert not takes_long(ids, 10 * AT_ONCE)
    assert takes_long(plain(LONG), 10 * AT_ONCE) and not takes_long(plain("hi"), AT_ONCE)


@asynccontextmanager
async def two_tenants(**quota: int) -> AsyncIterator[FakeGateway]:
    """A gateway whose engine has reported; the first tenant has a quota."""
    world = make_world(tenants=[make_tenant("a", "key-a", quota=quota), make_tenant("b", "key-b")])
    async with FakeEngine(tokens_per_s=1000.0, max_sequences=8) as engine, serving(world) as gateway:
        set_engines(world, engine)

        async def known() -> bool:
            return any(told.state for told in (await gateway.model()).engines)

        await eventually(known)
        yield gateway


async def post(gateway: FakeGateway, tenant: str, content: str, **headers: str) -> httpx.Response:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    sent = {"authorization": f"Bearer key-{tenant}", **headers}
    return await gateway.http.post(gateway.url + CHAT, json=body, headers=sent)


QUOTAS = {"requests": {"requestsPerMinute": 1}, "tokens": {"tokensPerMinute": 23}}


@pytest.mark.parametrize("quota", QUOTAS.values(), ids=QUOTAS.keys())
def test_whose_quota_is_used_up_gets_nothing_counted(quota: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_tenants(**quota) as gateway:
            assert (await post(gateway, "a", "hi")).status_code == 200
            slow = Slow(monkeypatch)
            slow.let_go.set()
            refused = await post(gateway, "a", LONG)
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "quota_exceeded"
            assert slow.began == []
            assert (await post(gateway, "b", LONG)).status_code == 200
            assert slow.began == ["word "]

    asyncio.run(main())


def test_the_whole_prompt_is_reserved_once_it_is_counted() -> None:
    async def main() -> None:
        async with two_tenants(tokensPerMinute=5000, requestsPerMinute=3) as gateway:
            answer = await post(gateway, "a", LONG)
            used = answer.json()["usage"]["total_tokens"]
            assert used > 300 and answer.headers["x-ratelimit-remaining-tokens"] == str(5000 - used)
            await eventually(gateway.idle)
            tenant = (await gateway.state()).tenants[0]
            assert (tenant.tokens_last_minute, tenant.requests_last_minute) == (used, 1)
            never = await post(gateway, "a", LONG * 4)
            assert never.status_code == 400
            await eventually(gateway.idle)
            tenant = (await gateway.state()).tenants[0]
            assert (tenant.tokens_last_minute, tenant.requests_last_minute) == (used, 1), "refused: given back whole"

    asyncio.run(main())


def test_a_count_ends_with_the_requests_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_tenants() as gateway:
            slow = Slow(monkeypatch)
            first = asyncio.create_task(post(gateway, "a", LONG))
            await slow.wait_for(1)
            late = await post(gateway, "a", LONG, **{"x-headrace-deadline-ms": "100"})
            assert (late.status_code, late.json()["error"]["code"]) == (503, "deadline_exceeded")
            assert int(late.headers["retry-after"]) >= 1 and len(slow.began) == 1
            slow.let_go.set()
            assert (await first).status_code == 200
            await eventually(gateway.idle)
            outcomes = (await gateway.service_class()).outcomes
            assert outcomes["good"] + outcomes["late"] == 1 and outcomes["shed"] == 1

    asyncio.run(main())
