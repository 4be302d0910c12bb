"""A Model that is held at zero replicas: who waits for one, and who is told at once that none will come."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headrace.api.model import Model
from headrace.planning.replicas import why_held
from headrace.testing.fake_engine import FakeEngine, Fault
from headrace.testing.fake_world import (
    NAMESPACE,
    FakeGateway,
    eventually,
    make_model,
    make_world,
    serving,
    set_engines,
)

NOW = 1_800_000_000.0  # in January 2027
WAIT = 300.0
CURE = f"`kubectl scale models.headrace.dev m -n {NAMESPACE} --replicas=1`"
AUTO = {"mode": "Auto", "minReplicas": 0, "maxReplicas": 2}
LONG = {"replicas": 0, "until": "2099-01-01T00:00:00Z"}
SOON = {"replicas": 0, "until": "2027-01-15T08:03:20Z"}  # 200 s after NOW
DAY = {"name": "day", "start": "00:00", "end": "12:00", "timeZone": "UTC", "maxReplicas": 0}


def written(reason: str, **spec: Any) -> Model:
    condition = {"type": "ScalingActive", "status": "False", "reason": reason, "message": ""}
    return Model.model_validate({**make_model(**spec).model_dump(by_alias=True), "status": {"conditions": [condition]}})


HELD = {
    "off": (make_model(replicas=0), ["spec.replicas", "mode Off", CURE, "mode Auto"]),
    "off as the operator has seen": (written("Off", replicas=0), ["spec.replicas", CURE]),
    "advise": (make_model(replicas=0, scaling={**AUTO, "mode": "Advise"}), ["spec.replicas", "mode Advise", CURE]),
    "auto, by an override": (make_model(scaling={**AUTO, "override": LONG}), ["override to 0 until 2099"]),
    "auto, by a schedule": (make_model(scaling={**AUTO, "schedules": [DAY]}), ["schedule day (daily 00:00 to 12:00"]),
}
FREE = {
    "off, one wanted": make_model(),
    "auto": make_model(scaling=AUTO),
    "auto, spec.replicas says nothing": make_model(replicas=0, scaling=AUTO),
    "auto, an override that ends soon": make_model(scaling={**AUTO, "override": SOON}),
    "off, an override counts for nothing": make_model(scaling={"mode": "Off", "override": LONG}),
    "another writer decides": written("Conflict", replicas=0),
}


@pytest.mark.parametrize(("model", "parts"), HELD.values(), ids=HELD)
def test_what_holds_a_model_at_zero_is_named(model: Model, parts: list[str]) -> None:
    why = why_held(model, NOW, WAIT)
    assert why is not None and all(part in why for part in parts), why


@pytest.mark.parametrize("model", FREE.values(), ids=FREE)
def test_a_model_that_may_get_a_replica_is_not_held(model: Model) -> None:
    assert why_held(model, NOW, WAIT) is None


def test_without_a_time_only_the_spec_holds() -> None:
    assert why_held(make_model(scaling={**AUTO, "override": LONG})) is None
    assert why_held(make_model(replicas=0)) is not None


async def post(gateway: FakeGateway, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}
    url, auth = gateway.url + "/v1/chat/completions", {"authorization": "Bearer key"}
    return await asyncio.wait_for(gateway.http.post(url, json=body, headers=auth), 10)


async def queued(gateway: FakeGateway, number: int) -> None:
    async def waits() -> bool:
        return (await gateway.service_class()).queued == number

    await eventually(waits)


def refused(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], answer.headers["retry-after"]) == (503, "no_capacity", "60")
    assert "held at 0 replicas by spec.replicas with spec.scaling.mode Off" in error["message"]
    assert CURE in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_for_a_model_that_is_held_at_zero_is_told_at_once(stream: bool) -> None:
    async def main() -> None:
        async with serving(make_world([make_model(replicas=0)]), hold_s=0.0, beat_s=0.05) as gateway:
            refused(await post(gateway, stream=stream))
            await eventually(gateway.idle)

    asyncio.run(main())


def test_an_override_to_zero_is_told_at_once() -> None:
    async def main() -> None:
        async with serving(make_world([make_model(scaling={**AUTO, "override": LONG})])) as gateway:
            answer = await post(gateway)
            assert answer.status_code == 503 and "override to 0 until 2099" in answer.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "spec", [{"scaling": AUTO}, {"replicas": 1}], ids=["auto-from-zero", "off-with-a-replica-to-come"]
)
def test_a_request_waits_for_a_replica_that_will_come(spec: dict[str, Any]) -> None:
    async def main() -> None:
        world = make_world([make_model(**spec)])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            request = asyncio.create_task(post(gateway))
            await queued(gateway, 1)
            set_engines(world, engine)
            assert (await request).status_code == 200

    asyncio.run(main())


def test_an_engine_that_serves_still_does_whatever_the_spec_says() -> None:
    async def main() -> None:
        world = make_world([make_model(replicas=0)])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            assert (await post(gateway)).status_code == 200

    asyncio.run(main())


def test_requests_that_wait_while_their_model_is_scaled_to_zero_end() -> None:
    async def main() -> None:
        world = make_world([make_model(replicas=1)])
        async with serving(world) as gateway:
            requests = [asyncio.create_task(post(gateway)) for _ in range(3)]
            await queued(gateway, 3)
            world.models = {(NAMESPACE, "m"): make_model(replicas=0)}
            world.notify()
            for request in requests:
                refused(await request)
            await eventually(gateway.idle)

    asyncio.run(main())


def test_requests_behind_the_last_engine_of_a_model_end_with_it() -> None:
    async def main() -> None:
        world = make_world([make_model(replicas=1)])
        async with serving(world) as gateway, FakeEngine(max_sequences=1) as engine:
            engine.inject(Fault.HANG)
            set_engines(world, engine)
            first = asyncio.create_task(post(gateway))

            async def taken() -> bool:
                return len(engine.seen) == 1

            await eventually(taken)
            second = asyncio.create_task(post(gateway))
            await queued(gateway, 1)
            world.models = {(NAMESPACE, "m"): make_model(replicas=0)}
            world.endpoints = {}
            world.notify()
            refused(await second)
            first.cancel()
            await eventually(gateway.idle)

    asyncio.run(main())
