"""Engines that break, hang, drain, vanish and are not there yet: what the client gets, and that nothing leaks."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headrace.testing.fake_engine import FakeEngine, Fault
from headrace.testing.fake_world import FakeGateway, eventually, make_world, serving, set_engines
from headrace_wire.reasons import Reason

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello there"}
AUTH = {"authorization": "Bearer key"}


async def post(gateway: FakeGateway, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [USER], **body}
    return await gateway.http.post(gateway.url + CHAT, json=fields, headers=AUTH)


async def known(gateway: FakeGateway, engines: int = 1) -> None:
    """Until so many engines have reported."""

    async def reported() -> bool:
        return sum(engine.state is not None for engine in (await gateway.model()).engines) == engines

    await eventually(reported)


async def outcomes(gateway: FakeGateway) -> dict[str, int]:
    """Outcomes that have happened, once everything has ended."""
    await eventually(gateway.idle)
    return {name: count for name, count in (await gateway.service_class()).outcomes.items() if count}


BEFORE = [Fault.CLOSE_BEFORE_FIRST_BYTE, Fault.REFUSE, Fault.DRAINING]
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@STREAM
@pytest.mark.parametrize("fault", BEFORE[1:], ids=lambda fault: fault.value)
def test_two_failures_before_the_first_byte_are_too_many_unless_they_cost_nothing(fault: Fault, stream: bool) -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", tokens_per_s=1000.0) as e0,
            FakeEngine(instance="e1", tokens_per_s=1000.0) as e1,
            serving(world) as gateway,
        ):
            set_engines(world, e0, e1)
            await known(gateway, 2)
            for engine in (e0, e1):
                engine.inject(fault)
            first = await post(gateway, stream=stream)
            failed_once = first.status_code == 200
            assert failed_once is (fault is Fault.DRAINING), "both engines fail once; only a free retry comes twice"
            second = await post(gateway, stream=stream)
            assert second.status_code == 200 and "hello there" in text(second, stream)

    asyncio.run(main())


def text(answer: httpx.Response, stream: bool) -> str:
    if not stream:
        return str(answer.json()["choices"][0]["message"]["content"])
    lines = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: {")]
    chunks = [httpx.Response(200, content=line).json() for line in lines]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


@STREAM
@pytest.mark.parametrize("fault", BEFORE, ids=lambda fault: fault.value)
def test_one_of_two_engines_failing_is_not_seen(fault: Fault, stream: bool) -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", tokens_per_s=1000.0) as e0,
            FakeEngine(instance="e1", tokens_per_s=1000.0) as e1,
            serving(world) as gateway,
        ):
            set_engines(world, e0, e1)
            await known(gateway, 2)
            e0.inject(fault, times=5)
            asked = 0
            while asked < 8 or (not e0.seen and asked < 64):  # equal loads are told apart by ids that are drawn
                answer = await post(gateway, stream=stream)
                assert answer.status_code == 200 and text(answer, stream) == "hello there"
                asked += 1
            assert len(e0.seen) > 0
            assert await outcomes(gateway) == {"good": asked}
            ids = [seen.raw["headrace"]["id"] for seen in [*e0.seen, *e1.seen]]
            assert len(set(ids)) == len(ids), "engines never see an id twice"

    asyncio.run(main())


@pytest.mark.parametrize("fault", [Fault.ERROR_MID_STREAM, Fault.CLOSE_MID_STREAM], ids=lambda fault: fault.value)
def test_a_failure_after_the_first_byte_is_an_error_event(fault: Fault) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=200.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            engine.inject(fault, after_tokens=3)
            answer = await post(gateway, stream=True)
            assert answer.status_code == 200
            events = [event for event in answer.text.split("\n\n") if event]
            assert '"error"' in events[-1] and "engine_failed" in events[-1]
            assert "[DONE]" not in answer.text and "hel" in text(answer, True)
            assert len(engine.seen) == 1
            assert await outcomes(gateway) == {"error": 1}
            tenant = (await gateway.state()).tenants[0]
            assert 30 < tenant.tokens_last_minute < 60, "the tokens that were made are charged, no more"

    asyncio.run(main())


def test_a_failure_in_the_middle_of_a_whole_answer_is_tried_again() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=200.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            engine.inject(Fault.CLOSE_MID_STREAM, after_tokens=3)
            answer = await post(gateway)
            assert answer.status_code == 200 and text(answer, False) == "hello there"
            assert await outcomes(gateway) == {"good": 1}

    asyncio.run(main())


@STREAM
@pytest.mark.parametrize(
    ("fault", "settings"),
    [(Fault.HANG, {"first_s": 0.2}), (Fault.HANG_MID_STREAM, {"idle_s": 0.2})],
    ids=["no head", "in the middle"],
)
def test_a_hung_engine_is_a_timeout(fault: Fault, settings: dict[str, float], stream: bool) -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=200.0) as engine, serving(world, **settings) as gateway:
            set_engines(world, engine)
            await known(gateway)
            engine.inject(fault)
            answer = await post(gateway, stream=stream)
            told = stream and fault is Fault.HANG_MID_STREAM
            assert answer.status_code == (200 if told else 504)
            assert Reason.ENGINE_TIMEOUT.value in answer.text and "[DONE]" not in answer.text
            assert await outcomes(gateway) == {"error": 1}

            async def left() -> bool:
                return engine.cancelled == 1 or fault is Fault.HANG

            await eventually(left, 10)  # promised: 1 s
            assert (await post(gateway)).status_code == 200

    asyncio.run(main())


def test_at_zero_replicas_a_request_waits_for_the_first() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            asking = asyncio.create_task(post(gateway))

            async def queued() -> bool:
                return (await gateway.service_class()).queued == 1

            await eventually(queued)
            row, model = await gateway.service_class(), await gateway.model()
            assert row.oldest_age_s is not None and row.queued_tokens > 0 and row.in_flight == 0
            assert model.last_request_age_s is not None and model.last_request_age_s < 5
            set_engines(world, engine)
            answer = await asyncio.wait_for(asking, 5)
            assert answer.status_code == 200
            tokens = answer.json()["usage"]["total_tokens"]
            assert (await gateway.state()).tenants[0].tokens_last_minute == tokens, "the estimate was settled"
            assert await outcomes(gateway) == {"good": 1}

    asyncio.run(main())


def test_an_impossible_prompt_is_found_when_the_tokenizer_comes() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_tokens=64) as engine, serving(world) as gateway:
            asking = asyncio.create_task(post(gateway, messages=[{"role": "user", "content": "x" * 90}]))

            async def queued() -> bool:
                return (await gateway.service_class()).queued == 1

            await eventually(queued)
            set_engines(world, engine)
            answer = await asyncio.wait_for(asking, 5)
            assert answer.status_code == 400
            assert "109 tokens" in answer.text and "64 tokens" in answer.text
            assert not engine.seen and await gateway.idle()
            assert (await gateway.service_class()).offered == 0

    asyncio.run(main())


def test_a_full_waiting_room_is_503_with_retry_after() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world, queue_requests=2) as gateway:
            waiting = [asyncio.create_task(post(gateway)) for _ in range(2)]

            async def queued() -> bool:
                return (await gateway.service_class()).queued == 2

            await eventually(queued)
            refused = await post(gateway)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "no_capacity"
            assert int(refused.headers["retry-after"]) >= 1
            for task in waiting:
                task.cancel()
            assert await outcomes(gateway) == {"shed": 1, "cancelled": 2}
            assert (await gateway.state()).tenants[0].tokens_last_minute == 0

    asyncio.run(main())


def test_a_wait_for_the_first_replica_ends() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world, cold_wait_s=0.3) as gateway:
            answer = await post(gateway)
            assert answer.status_code == 503 and "retry-after" in answer.headers
            assert await outcomes(gateway) == {"shed": 1}

    asyncio.run(main())


def test_a_full_queue_before_a_busy_engine_is_429() -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(max_sequences=1, tokens_per_s=20.0) as engine,
            serving(world, queue_requests=1) as gateway,
        ):
            set_engines(world, engine)
            await known(gateway)
            asked = [asyncio.create_task(post(gateway)) for _ in range(5)]
            answers = await asyncio.gather(*asked)
            codes = sorted(answer.status_code for answer in answers)
            assert codes == [200, 200, 429, 429, 429]
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert refused.json()["error"]["code"] == "queue_full" and "retry-after" in refused.headers
            assert max(len(engine.scheduler.waiting) for _ in [0]) == 0
            assert await outcomes(gateway) == {"good": 2, "shed": 3}

    asyncio.run(main())


def test_deadlines_that_cannot_be_met_are_shed_early() -> None:
    async def main() -> None:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=10.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            await known(gateway)
            long = asyncio.create_task(post(gateway))

            async def running() -> bool:
                return (await gateway.service_class()).in_flight == 1

            await eventually(running)
            fields = {"model": "m", "messages": [USER]}
            headers = {**AUTH, "x-headrace-deadline-ms": "200"}
            late = await gateway.http.post(gateway.url + CHAT, json=fields, headers=headers)
            assert late.status_code == 503 and late.json()["error"]["code"] == "deadline_exceeded"
            assert (await long).status_code == 200
            assert len(engine.seen) == 1

    asyncio.run(main())


def test_a_killed_engine_under_load_leaves_no_request_without_an_answer() -> None:
    async def main() -> None:
        world = make_world()
        e0 = await FakeEngine(instance="e0", tokens_per_s=100.0).start()
        async with FakeEngine(instance="e1", tokens_per_s=100.0) as e1, serving(world) as gateway:
            set_engines(world, e0)
            await known(gateway)
            asked = [asyncio.create_task(post(gateway, stream=i % 2 == 0)) for i in range(6)]

            async def busy() -> bool:
                return bool(e0.scheduler.running)

            await eventually(busy)
            await asyncio.sleep(0.05)  # in the middle of an answer
            await e0.stop()
            set_engines(world, e1)
            answers = await asyncio.wait_for(asyncio.gather(*asked), 10)
            for i, answer in enumerate(answers):
                whole = "hello there" in text(answer, i % 2 == 0) if answer.status_code == 200 else False
                assert whole or '"error"' in answer.text
            await eventually(gateway.idle)
            done = await outcomes(gateway)
            assert sum(done.values()) == 6 and done["good"] >= 4

    asyncio.run(main())


def test_a_pod_that_leaves_gets_nothing_new_and_ends_what_it_has() -> None:
    async def main() -> None:
        world = make_world()
        async with (
            FakeEngine(instance="e0", tokens_per_s=40.0) as e0,
            FakeEngine(instance="e1", tokens_per_s=1000.0) as e1,
            serving(world) as gateway,
        ):
            set_engines(world, e0)
            await known(gateway)
            long = asyncio.create_task(post(gateway, stream=True))

            async def running() -> bool:
                return bool(e0.scheduler.running)

            await eventually(running)
            set_engines(world, e1)
            assert (await post(gateway)).status_code == 200
            assert text(await long, True) == "hello there"
            assert (len(e0.seen), len(e1.seen)) == (1, 1)
            assert await outcomes(gateway) == {"good": 2}

    asyncio.run(main())


def test_a_deleted_model_ends_what_waits_for_it() -> None:
    async def main() -> None:
        world = make_world()
        async with serving(world) as gateway:
            asking = asyncio.create_task(post(gateway))

            async def queued() -> bool:
                return (await gateway.service_class()).queued == 1

            await eventually(queued)
            world.models = {}
            world.notify()
            answer = await asyncio.wait_for(asking, 5)
            assert answer.status_code == 503 and "deleted" in answer.text
            assert (await post(gateway)).status_code == 404

    asyncio.run(main())
