"""Quotas over real HTTP, cancel storms, outcomes, metrics: nothing is counted twice, and everything returns to zero."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import (
    FakeGateway,
    eventually,
    make_model,
    make_tenant,
    make_world,
    serving,
    set_engines,
)

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
PROMPT = 21  # tokens of USER with its template
AUTH = {"authorization": "Bearer key"}


async def post(gateway: FakeGateway, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [USER], **body}
    return await gateway.http.post(gateway.url + CHAT, json=fields, headers=AUTH)


async def known(gateway: FakeGateway) -> None:
    async def reported() -> bool:
        return any(engine.state for engine in (await gateway.model()).engines)

    await eventually(reported)


async def outcomes(gateway: FakeGateway) -> dict[str, int]:
    await eventually(gateway.idle)
    return {name: count for name, count in (await gateway.service_class()).outcomes.items() if count}


QUOTAS: dict[str, tuple[dict[str, int], int, str]] = {
    "tokens": ({"tokensPerMinute": 3 * (PROMPT + 10) + 5}, 3, "tokensPerMinute"),
    "requests": ({"requestsPerMinute": 4}, 4, "requestsPerMinute"),
    "at one time": ({"concurrentRequests": 2}, 2, "concurrentRequests"),
    "day": ({"tokensPerDay": PROMPT + 10}, 1, "tokensPerDay"),
}


@pytest.mark.parametrize(("quota", "admitted", "limit"), QUOTAS.values(), ids=QUOTAS.keys())
def test_of_many_at_once_exactly_the_limit_is_admitted(quota: dict[str, int], admitted: int, limit: str) -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota=quota)])
        async with FakeEngine(max_sequences=8, tokens_per_s=20.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            answers = await asyncio.gather(*(post(gateway, max_tokens=10) for _ in range(6)))
            good = [answer for answer in answers if answer.status_code == 200]
            refused = [answer for answer in answers if answer.status_code == 429]
            assert (len(good), len(refused)) == (admitted, 6 - admitted)
            for answer in refused:
                error = answer.json()["error"]
                assert error["type"] == error["code"].replace("exceeded", "exceeded") == "quota_exceeded"
                assert limit in error["message"] and int(answer.headers["retry-after"]) >= 1
            assert await outcomes(gateway) == {"good": admitted, "quota": 6 - admitted}
            row, state = await gateway.service_class(), await gateway.state()
            assert row.offered == admitted, "what is over quota is not offered"
            used = sum(answer.json()["usage"]["total_tokens"] for answer in good)
            assert state.tenants[0].tokens_last_minute == used == admitted * (PROMPT + 3)
            assert state.tenants[0].requests_last_minute == admitted

    asyncio.run(main())


def test_a_quota_counts_every_choice() -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"tokensPerMinute": PROMPT + 7 * 10})])
        async with FakeEngine(max_sequences=8, tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            never = await post(gateway, n=8, max_tokens=10)
            assert never.status_code == 400 and never.json()["error"]["code"] == "request_exceeds_quota"
            assert (await post(gateway, n=7, max_tokens=10)).status_code == 200

    asyncio.run(main())


def test_a_limit_that_is_injected_fits_the_quota() -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"tokensPerMinute": 100, "maxTokensPerRequest": 50})])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            answer = await post(gateway)
            assert answer.status_code == 200 and answer.headers["x-headrace-max-tokens"] == "50"
            assert (await post(gateway, max_tokens=51)).status_code == 400

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_its_request_within_a_second(stream: bool) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=20.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            asking = asyncio.create_task(post(gateway, stream=stream, max_tokens=500, ignore_eos=True))

            async def generating() -> bool:
                return any(s.prefilled for s in engine.scheduler.running)

            await eventually(generating)
            await asyncio.sleep(0.2)  # a few tokens
            asking.cancel()

            async def left() -> bool:
                return engine.cancelled == 1 and not engine.scheduler.running

            await eventually(left, 10)  # promised: 1 s
            assert await outcomes(gateway) == {"cancelled": 1}
            row, tenant = await gateway.service_class(), (await gateway.state()).tenants[0]
            assert row.offered == 0, "no target had passed"
            assert PROMPT < tenant.tokens_last_minute < PROMPT + 20, "what was made is charged"

    asyncio.run(main())


def test_a_client_that_leaves_the_queue_is_never_dispatched() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=10.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            first = asyncio.create_task(post(gateway))

            async def running() -> bool:
                return len(engine.scheduler.running) == 1

            await eventually(running)
            second = asyncio.create_task(post(gateway))

            async def queued() -> bool:
                return (await gateway.service_class()).queued == 1

            await eventually(queued)
            second.cancel()
            assert (await first).status_code == 200
            assert await outcomes(gateway) == {"good": 1, "cancelled": 1}
            assert len(engine.seen) == 1
            assert (await gateway.state()).tenants[0].tokens_last_minute == PROMPT + 3

    asyncio.run(main())


def test_a_cancel_storm_leaves_nothing_behind() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=3, tokens_per_s=100.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            tasks = [asyncio.create_task(post(gateway, stream=i % 2 == 0, max_tokens=50)) for i in range(60)]
            for i, task in enumerate(tasks):
                if i % 3:
                    await asyncio.sleep(0.003)
                    task.cancel()
            kept = await asyncio.gather(*tasks, return_exceptions=True)
            answered = [answer for answer in kept if isinstance(answer, httpx.Response)]
            assert answered and all(answer.status_code == 200 for answer in answered)
            done = await outcomes(gateway)
            assert set(done) <= {"good", "cancelled"} and done["good"] >= len(answered)
            assert sum(done.values()) <= 60
            assert (await gateway.service_class()).admitted >= len(engine.seen)

            async def quiet() -> bool:
                return not engine.scheduler.running and not engine.scheduler.waiting

            await eventually(quiet)
            assert (await post(gateway)).status_code == 200

    asyncio.run(main())


def test_the_engine_is_never_sent_more_than_it_has_room_for() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=2, tokens_per_s=100.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            asked = [asyncio.create_task(post(gateway)) for _ in range(10)]
            most = 0
            while not all(task.done() for task in asked):
                most = max(most, len(engine.scheduler.waiting) + len(engine.scheduler.running))
                await asyncio.sleep(0.002)
            assert most == 2
            assert await outcomes(gateway) == {"good": 10}

    asyncio.run(main())


def test_more_choices_than_an_engine_has_slots_wait_until_it_is_idle() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=2, tokens_per_s=50.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            first = asyncio.create_task(post(gateway))
            await eventually(lambda: _running(engine))
            answer = await post(gateway, n=5)
            assert answer.status_code == 200 and len(answer.json()["choices"]) == 5
            assert first.done(), "it did not go before the engine was idle"

    asyncio.run(main())


def test_higher_classes_go_first() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=6.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)

            async def ask(service: str) -> httpx.Response:
                headers = {**AUTH, "x-headrace-class": service}
                body = {"model": "m", "messages": [{"role": "user", "content": service[:2]}]}
                return await gateway.http.post(gateway.url + CHAT, json=body, headers=headers)

            async def queued(service: str, count: int) -> None:
                async def enough() -> bool:
                    return (await gateway.service_class(service)).queued == count

                await eventually(enough)

            tasks = [asyncio.create_task(ask("batch"))]
            await eventually(lambda: _running(engine))
            tasks += [asyncio.create_task(ask("batch")) for _ in range(2)]
            await queued("batch", 2)
            tasks += [asyncio.create_task(ask("interactive")) for _ in range(2)]
            await queued("interactive", 2)
            await asyncio.gather(*tasks)
            order = [seen.raw["messages"][0]["content"] for seen in engine.seen]
            assert order == ["ba", "in", "in", "ba", "ba"]

    asyncio.run(main())


async def _running(engine: FakeEngine) -> bool:
    return bool(engine.scheduler.running)


def test_late_answers_are_late() -> None:
    async def main() -> None:
        targets = {"ttft": "20s", "tpot": "20s", "e2e": "50ms"}  # eleven tokens take 200 ms at least
        world = make_world(classes=[{"name": "interactive", "priority": 1, "maxQueueAge": "1s", **targets}])
        async with FakeEngine(tokens_per_s=50.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            assert (await post(gateway)).status_code == 200
            assert await outcomes(gateway) == {"late": 1}
            assert (await gateway.service_class()).offered == 1

    asyncio.run(main())


def test_metrics_have_the_names_and_no_prompt() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            secret = {"role": "user", "content": "sesame"}
            assert (await post(gateway, messages=[secret], stream=True)).status_code == 200
            assert (await post(gateway, frobnicate=1)).status_code == 400
            await eventually(gateway.idle)
            text = (await gateway.http.get(gateway.state_url + "/metrics")).text
            labels = 'class="interactive",model="m",model_namespace="team-a"'
            assert f'headrace_requests_total{{{labels},outcome="good",tenant="search"}} 1.0' in text
            for name in ("ttft", "itl", "tpot", "e2e", "queue"):
                assert f"headrace_{name}_seconds_count{{{labels}}}" in text
            assert f"headrace_queue_age_seconds{{{labels}}} 0.0" in text
            assert f'headrace_prompt_tokens_total{{cached="false",{labels},tenant="search"}} 25.0' in text
            assert 'headrace_refused_total{reason="invalid_request"} 1.0' in text
            assert "headrace_count_mismatches_total{" not in text, "gateway and engine count alike"
            assert "sesame" not in text and "key" not in text.replace("keyword", "")

    asyncio.run(main())


def test_logs_hold_neither_prompts_nor_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            await post(gateway, messages=[{"role": "user", "content": "sesame"}], frobnicate="sesame")
            await post(gateway, messages=[{"role": "user", "content": "sesame"}])
            body = {"model": "m", "messages": [{"role": "user", "content": "sesame"}]}
            bad = {"authorization": "Bearer hidden-key"}
            await gateway.http.post(gateway.url + CHAT, json=body, headers=bad)

    with caplog.at_level("DEBUG"):
        asyncio.run(main())
    ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert not any("sesame" in r.getMessage() or "hidden-key" in r.getMessage() for r in ours)


def test_a_tenant_learns_of_a_new_quota_at_once() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            assert (await post(gateway)).status_code == 200
            tenant = make_tenant(quota={"requestsPerMinute": 1})
            world.set_tenants({("team-a", "search"): tenant})
            world.notify()
            assert (await post(gateway)).status_code == 429, "what was used before stays counted"

    asyncio.run(main())


def test_a_second_model_does_not_wait_for_the_first() -> None:
    async def main() -> None:
        world = make_world([make_model(), make_model("cold")], [make_tenant(models=("m", "cold"))])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            waiting = asyncio.create_task(post(gateway, model="cold"))
            assert (await post(gateway)).status_code == 200
            assert not waiting.done()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
