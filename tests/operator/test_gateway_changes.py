"""The world changes while requests are on their way: Models, Tenants, keys, quotas and classes come and go."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import httpx
import pytest

from headrace.api.slo import ServiceLevelObjective
from headrace.gateway import counting
from headrace.gateway.world import Address
from headrace.testing.fake_engine import FakeEngine, Fault
from headrace.testing.fake_world import (
    NAMESPACE,
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
AUTH = {"authorization": "Bearer key"}
LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "stream": True}


async def post(gateway: FakeGateway, key: str = "key", **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [USER], **body}
    return await gateway.http.post(gateway.url + CHAT, json=fields, headers={"authorization": f"Bearer {key}"})


async def known(gateway: FakeGateway, model: str = "m") -> None:
    async def reported() -> bool:
        return any(engine.state for engine in (await gateway.model(model)).engines)

    await eventually(reported)


async def served(engine: FakeEngine, requests: int = 1) -> None:
    async def seen() -> bool:
        return len(engine.seen) >= requests

    await eventually(seen)


def test_a_request_on_an_engine_whose_model_is_deleted_does_not_wait_for_another() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world) as gateway:
            async with FakeEngine() as engine:
                engine.inject(Fault.HANG)
                set_engines(world, engine)
                await known(gateway)
                request = asyncio.create_task(post(gateway))
                await served(engine)
                world.models, world.endpoints = {}, {}
                world.notify()
            answer = await asyncio.wait_for(request, 5)  # the pod is gone, too
            assert answer.status_code == 503 and "deleted" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "1"

    asyncio.run(main())


@pytest.mark.parametrize(("generation", "status"), [(1, 503), (0, 200)], ids=["as-it-stands", "before-it-was-changed"])
def test_a_model_that_cannot_start_is_told_at_once(generation: int, status: int) -> None:
    stalled = {"type": "Stalled", "status": "True", "reason": "ParallelismUnsupported", "message": "2 ranks"}
    told = {"status": {"conditions": [{**stalled, "observedGeneration": generation}]}}

    async def main() -> None:
        model = make_model()
        world = make_world([type(model).model_validate(model.model_dump(by_alias=True) | told)])
        async with serving(world) as gateway, FakeEngine() as engine:
            request = asyncio.create_task(post(gateway))
            if status == 200:
                set_engines(world, engine)
            answer = await asyncio.wait_for(request, 5)
            assert answer.status_code == status
            if status == 503:
                assert "ParallelismUnsupported: 2 ranks" in answer.json()["error"]["message"]
                assert answer.headers["retry-after"] == "60"

    asyncio.run(main())


def test_a_stream_outlives_its_key_its_tenants_quota_and_its_class() -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"concurrentRequests": 5})])
        async with FakeEngine(tokens_per_s=100.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            request = asyncio.create_task(post(gateway, **{**LONG, "max_tokens": 60}))
            await served(engine)
            world.set_tenants({(NAMESPACE, "search"): make_tenant(key="new", quota={"concurrentRequests": 1})})
            world.slos = {}
            world.notify()
            assert (await post(gateway)).status_code == 401, "the old key"
            assert (await post(gateway, key="new")).status_code == 429, "the running one counts"
            answer = await request
            assert answer.status_code == 200 and "[DONE]" in answer.text
            assert (await post(gateway, key="new")).status_code == 200
            await eventually(gateway.idle)

    asyncio.run(main())


def test_a_stream_outlives_its_tenant() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=100.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            request = asyncio.create_task(post(gateway, **{**LONG, "max_tokens": 50}))
            await served(engine)
            world.set_tenants({})
            world.notify()
            answer = await request
            assert answer.status_code == 200 and "[DONE]" in answer.text
            assert (await gateway.state()).tenants == []
            assert (await post(gateway)).status_code == 401

    asyncio.run(main())


@pytest.mark.parametrize(("quota", "status"), [(None, 401), ({"requestsPerMinute": 1}, 429)], ids=["gone", "smaller"])
def test_a_tenant_that_changes_while_a_prompt_is_counted_counts_as_it_is_then(
    quota: dict[str, int] | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        gate, waiting, real = threading.Event(), threading.Event(), counting.count

        def slow(*arguments: Any) -> int:
            waiting.set()
            gate.wait(10)
            return real(*arguments)

        world = make_world()
        async with FakeEngine(tokens_per_s=1e6) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            assert (await post(gateway)).status_code == 200
            monkeypatch.setattr(counting, "count", slow)
            long = [{"role": "user", "content": "x" * 1500}]
            request = asyncio.create_task(post(gateway, messages=long, max_tokens=3))
            await asyncio.to_thread(waiting.wait, 5)
            world.set_tenants({} if quota is None else {(NAMESPACE, "search"): make_tenant(quota=quota)})
            world.notify()
            gate.set()
            answer = await request
            assert answer.status_code == status, answer.text
            assert len(engine.seen) == 1

    asyncio.run(main())


@pytest.mark.parametrize("change", ["removed", "renamed"])
def test_a_request_keeps_its_class_when_the_objective_changes(change: str) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=200.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            first = asyncio.create_task(post(gateway, **{**LONG, "max_tokens": 100}))
            await served(engine)
            headers = {**AUTH, "x-headrace-class": "batch"}
            fields = {"model": "m", "messages": [USER]}
            second = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=fields, headers=headers))

            async def queued() -> bool:
                return (await gateway.service_class("batch")).queued == 1

            await eventually(queued)
            other = {"name": "other", "priority": 1, "ttft": "20s", "tpot": "5s", "maxQueueAge": "1s"}
            spec = {"classes": [other]}
            meta = {"name": "chat", "namespace": NAMESPACE}
            world.slos = (
                {}
                if change == "removed"
                else {(NAMESPACE, "chat"): ServiceLevelObjective.model_validate({"metadata": meta, "spec": spec})}
            )
            world.notify()
            assert (await first).status_code == 200
            answer = await second
            assert answer.status_code == 200 and answer.headers["x-headrace-class"] == "batch"
            refused = await gateway.http.post(gateway.url + CHAT, json=fields, headers=headers)
            assert refused.status_code == 403
            await eventually(gateway.idle)

    asyncio.run(main())


def test_models_of_one_name_in_two_namespaces_are_two() -> None:
    async def main() -> None:
        def elsewhere(obj: Any) -> Any:
            meta = obj.metadata.model_copy(update={"namespace": "team-b", "uid": "uid-b"})
            return obj.model_copy(update={"metadata": meta})

        world = make_world()
        there = ("team-b", "m")
        world.models = {**world.models, there: elsewhere(make_model(serviceLevelRef=None))}
        world.set_tenants({**world.tenants, ("team-b", "search"): elsewhere(make_tenant(key="b"))})
        async with (
            FakeEngine(instance="a", tokens_per_s=1e6) as a,
            FakeEngine(instance="b", tokens_per_s=1e6) as b,
            serving(world) as gateway,
        ):
            set_engines(world, a)
            world.endpoints = {**world.endpoints, there: (Address("b", "127.0.0.1", b.port),)}
            world.notify()
            for key in ("key", "b", "b"):
                assert (await post(gateway, key=key)).status_code == 200
            assert (len(a.seen), len(b.seen)) == (1, 2)
            salts = {seen.raw["headrace"]["salt"] for seen in [*a.seen, *b.seen]}
            assert len(salts) == 2, "and never share a cache"
            await eventually(gateway.idle)
            good = {
                (m.namespace, c.name): c.outcomes["good"] for m in (await gateway.state()).models for c in m.classes
            }
            assert good[(NAMESPACE, "interactive")] == 1 and good[("team-b", "default")] == 2

    asyncio.run(main())


@pytest.mark.parametrize("state", ["counting", "queued", "prefill", "streaming", "whole"])
def test_a_client_may_leave_in_every_state(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        gate, counts, world = threading.Event(), threading.Event(), make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=20.0) as engine, serving(world) as gateway:
            if state == "prefill":
                engine.inject(Fault.HANG)
            if state != "queued":
                set_engines(world, engine)
                await known(gateway)
            body = {**LONG, "stream": state != "whole"}
            if state == "counting":
                real = counting.count

                def held(*arguments: Any) -> int:
                    counts.set()
                    gate.wait(10)
                    return real(*arguments)

                monkeypatch.setattr(counting, "count", held)
                body["messages"] = [{"role": "user", "content": "x" * 1500}]
            request = asyncio.create_task(post(gateway, **body))

            async def there() -> bool:
                row = await gateway.service_class()
                if state == "counting":
                    return counts.is_set()
                return row.queued == 1 if state == "queued" else row.in_flight == 1 and bool(engine.seen)

            await eventually(there)
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
            await eventually(gateway.idle, 10)

            async def told() -> bool:
                return (await gateway.service_class()).outcomes["cancelled"] == 1

            await eventually(told, 10)
            gate.set()
            assert len(engine.seen) == (0 if state in ("counting", "queued") else 1)
            assert (await gateway.state()).tenants[0].requests_last_minute == len(engine.seen)

    asyncio.run(main())


def test_rate_limits_are_told_with_every_answer() -> None:
    async def main() -> None:
        quota = {"requestsPerMinute": 2, "tokensPerMinute": 1000}
        world = make_world(tenants=[make_tenant(quota=quota), make_tenant("free", key="free")])
        async with FakeEngine(tokens_per_s=1e6) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            first = (await post(gateway, max_tokens=9)).headers
            assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("2", "1")
            assert first["x-ratelimit-limit-tokens"] == "1000"
            assert int(first["x-ratelimit-remaining-tokens"]) == 1000 - 21 - 9, "with what it may still cost"
            assert 50 < float(first["x-ratelimit-reset-requests"].removesuffix("s")) <= 61
            assert (await post(gateway, max_tokens=9, stream=True)).headers["x-ratelimit-remaining-requests"] == "0"
            over = await post(gateway, max_tokens=9)
            assert over.status_code == 429 and over.headers["x-ratelimit-remaining-requests"] == "0"
            assert int(over.headers["retry-after"]) >= 50
            free = await post(gateway, key="free")
            assert not [name for name in free.headers if name.startswith("x-ratelimit")]

    asyncio.run(main())


def test_queue_age_covers_what_waits_inside_engines() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=50.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)

            async def ages() -> dict[str, float]:
                text = (await gateway.http.get(gateway.state_url + "/metrics")).text
                rows = [line for line in text.splitlines() if line.startswith("headrace_queue_age_seconds{")]
                return {row.split('class="')[1].split('"')[0]: float(row.rsplit(" ", 1)[1]) for row in rows}

            assert (await ages())["interactive"] == 0
            direct = {"model": "m", "messages": [USER], "max_tokens": 400, "ignore_eos": True}
            request = asyncio.create_task(post(gateway, **LONG))
            await served(engine)
            more = [asyncio.create_task(gateway.http.post(engine.url + CHAT, json=direct)) for _ in range(2)]

            async def aged() -> bool:
                return (await ages())["interactive"] > 0.2

            await eventually(aged)
            assert (await ages())["batch"] == 0, "none of that class is with an engine"
            for task in (request, *more):
                task.cancel()
            await asyncio.gather(request, *more, return_exceptions=True)
            await eventually(gateway.idle)

    asyncio.run(main())


def test_an_engine_whose_report_cannot_be_used_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1e6) as engine, serving(world) as gateway:
            real, calls = gateway.service.fleet._counter.learn, 0

            async def broken(*arguments: Any) -> bool:
                nonlocal calls
                calls += 1
                if calls == 1:
                    raise RuntimeError("a tokenizer that no one has seen before")
                return await real(*arguments)

            monkeypatch.setattr(gateway.service.fleet._counter, "learn", broken)
            set_engines(world, engine)
            await known(gateway)
            assert (await post(gateway)).status_code == 200 and calls >= 2

    asyncio.run(main())
