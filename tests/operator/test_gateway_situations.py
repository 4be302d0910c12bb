"""Small situations in which gateways go wrong: an engine that hangs, moves, or is shared by a burst of one prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from headrace.gateway.world import Address
from headrace.testing.fake_engine import FakeEngine, Fault
from headrace.testing.fake_world import NAMESPACE, FakeGateway, eventually, make_world, serving, set_engines

CHAT = "/v1/chat/completions"
AUTH = {"authorization": "Bearer key"}
PROMPT = "one long system prompt that everybody shares. " * 20


async def post(gateway: FakeGateway, content: str = "hello", **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
    return await gateway.http.post(gateway.url + CHAT, json=body, headers=AUTH)


async def reported(gateway: FakeGateway, engines: int) -> None:
    """Every engine has reported."""

    async def all_told() -> bool:
        return len([e for e in (await gateway.model()).engines if e.state is not None]) == engines

    await eventually(all_told)


def test_a_pod_whose_port_changed_gets_its_requests_there() -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", tokens_per_s=1000.0) as old,
            FakeEngine(instance="e0", tokens_per_s=1000.0) as new,
            serving(world) as gateway,
        ):
            set_engines(world, old)
            await reported(gateway, 1)
            assert (await post(gateway)).status_code == 200
            world.endpoints = {(NAMESPACE, "m"): (Address("e0", "127.0.0.1", new.port),)}
            world.notify()
            assert [(await post(gateway)).status_code for _ in range(3)] == [200] * 3
            assert (len(old.seen), len(new.seen)) == (1, 3)
            polls = old.state_polls
            await post(gateway)
            assert old.state_polls == polls, "nobody asks the old place any more"

    asyncio.run(main())


def test_a_hung_engine_costs_only_its_own_requests() -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", max_sequences=2, tokens_per_s=1000.0) as hung,
            FakeEngine(instance="e1", max_sequences=2, tokens_per_s=1000.0) as well,
            serving(world, first_s=3.0) as gateway,
        ):
            set_engines(world, hung, well)
            await reported(gateway, 2)
            hung.inject(Fault.HANG, times=100)
            answers = await asyncio.gather(*(post(gateway) for _ in range(12)))
            by_status = sorted(answer.status_code for answer in answers)
            assert set(by_status) <= {200, 504}
            assert by_status.count(504) == len(hung.seen), "each request that it took, and none else"
            assert by_status.count(200) == len(well.seen) >= 8
            await eventually(gateway.idle)

    asyncio.run(main())


def test_a_burst_of_one_prompt_is_spread() -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", max_sequences=8, tokens_per_s=200.0) as e0,
            FakeEngine(instance="e1", max_sequences=8, tokens_per_s=200.0) as e1,
            FakeEngine(instance="e2", max_sequences=8, tokens_per_s=200.0) as e2,
            serving(world) as gateway,
        ):
            engines = (e0, e1, e2)
            set_engines(world, *engines)
            await reported(gateway, 3)
            answers = await asyncio.gather(*(post(gateway, PROMPT) for _ in range(60)))
            assert {answer.status_code for answer in answers} == {200}
            counts = [len(engine.seen) for engine in engines]
            assert sum(counts) == 60 and max(counts) <= 1.5 * min(counts), counts

    asyncio.run(main())


def test_what_a_client_says_of_itself_changes_nobodys_account() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await reported(gateway, 1)
            lies = {"user": "other", "metadata": {"tenant": "other"}, "cache_salt": "theirs", "priority": 999}
            headers = AUTH | {"x-headrace-tenant": "other", "x-tenant": "other", "x-user-id": "other"}
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **lies}
            honest = await post(gateway)
            lying = await gateway.http.post(gateway.url + CHAT, json=body, headers=headers)
            assert (honest.status_code, lying.status_code) == (200, 200)
            told = [request.raw["headrace"] for request in engine.seen]
            assert [(each["salt"], each["priority"], each["holder"]) for each in told] == [
                (told[0]["salt"], 100, "gw-0")
            ] * 2
            assert not lies.keys() & engine.seen[1].raw.keys()
            (tenant,) = (await gateway.state()).tenants
            assert (tenant.name, tenant.requests_last_minute) == ("search", 2)

    asyncio.run(main())
