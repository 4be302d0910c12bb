"""How requests end that no engine answers: given back, shed, told why; and what the log has of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from headrace.api.model import Model
from headrace.cli.logs import JsonFormatter
from headrace.gateway.ledger import ClassBook, Outcome
from headrace.gateway.world import Address, World
from headrace.testing.fake_engine import FakeEngine
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
AUTH = {"authorization": "Bearer key"}


async def post(gateway: FakeGateway, **body: Any) -> httpx.Response:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **body}
    return await gateway.http.post(gateway.url + CHAT, json=fields, headers=AUTH)


async def full(gateway: FakeGateway, engine: FakeEngine) -> asyncio.Task[httpx.Response]:
    """A request that takes the engine's only place for long."""

    async def known() -> bool:
        return any(told.state for told in (await gateway.model()).engines)

    async def runs() -> bool:
        return bool(engine.scheduler.running)

    await eventually(known)
    task = asyncio.create_task(post(gateway, max_tokens=500, ignore_eos=True, stream=True))
    await eventually(runs)
    return task


async def queued(gateway: FakeGateway) -> asyncio.Task[httpx.Response]:
    """One more, that waits."""
    task = asyncio.create_task(post(gateway))

    async def waits() -> bool:
        return (await gateway.service_class()).queued == 1

    await eventually(waits)
    return task


def test_who_leaves_the_queue_gets_the_request_back_too() -> None:
    async def main() -> None:
        world = make_world(tenants=[make_tenant(quota={"requestsPerMinute": 10, "tokensPerMinute": 10_000})])
        async with FakeEngine(max_sequences=1, tokens_per_s=20.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            first = await full(gateway, engine)
            before = (await gateway.state()).tenants[0]
            second = await queued(gateway)
            second.cancel()

            async def cancelled() -> bool:
                return (await gateway.service_class()).outcomes["cancelled"] == 1

            await eventually(cancelled)
            after = (await gateway.state()).tenants[0]
            assert (before.requests_last_minute, before.concurrent_requests) == (1, 1)
            assert (after.requests_last_minute, after.concurrent_requests) == (1, 1)
            assert after.tokens_last_minute == before.tokens_last_minute
            first.cancel()

    asyncio.run(main())


def test_the_end_of_draining_sheds_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> dict[Outcome, int]:
        world = make_world()
        async with FakeEngine(max_sequences=1, tokens_per_s=10.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            first = await full(gateway, engine)
            second = await queued(gateway)
            await gateway.service.stop()
            told = await second
            assert (told.status_code, told.json()["error"]["code"]) == (503, "draining")
            assert b'"draining"' in (await first).content, "its 200 had gone: an error event"
            return gateway.service.books.book((NAMESPACE, "m"), "interactive").outcomes

    with caplog.at_level(logging.INFO):
        outcomes = asyncio.run(main())
    assert (outcomes[Outcome.SHED], outcomes[Outcome.ERROR]) == (1, 1)
    assert not [record for record in caplog.records if record.exc_info], "no traceback"


def stalled() -> Model:
    condition = {
        "type": "Stalled",
        "status": "True",
        "reason": "NameTaken",
        "message": "the Service m is somebody else's",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    status = {"observedGeneration": 1, "conditions": [condition]}
    return Model.model_validate({**make_model().model_dump(by_alias=True), "status": status})


async def asked_in_vain(gateway: FakeGateway, world: World) -> None:
    """Whoever is behind the endpoint has been asked for a report."""
    world.endpoints = {(NAMESPACE, "m"): (Address("web-1", "127.0.0.1", 1),)}
    world.notify()
    assert gateway.service.fleet.may_serve((NAMESPACE, "m")), "not asked yet"

    async def silent() -> bool:
        return not gateway.service.fleet.may_serve((NAMESPACE, "m"))

    await eventually(silent)


def test_endpoints_of_somebody_else_do_not_hide_that_a_model_is_stalled() -> None:
    async def main() -> None:
        world = make_world(models=[stalled()])
        async with serving(world) as gateway:
            await asked_in_vain(gateway, world)
            async with asyncio.timeout(10):  # its class would let it wait 20 s
                told = await post(gateway)
            error = told.json()["error"]
            assert (told.status_code, error["code"]) == (503, "no_capacity")
            assert "NameTaken" in error["message"]

    asyncio.run(main())


def test_a_stalled_model_whose_engine_reports_serves() -> None:
    async def main() -> None:
        world = make_world(models=[stalled()])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            assert (await post(gateway)).status_code == 200

    asyncio.run(main())


PATHS = {
    "/v1/sk-sesame": "other",
    "/sk-sesame": "other",
    "/v1/models/sk-sesame": "/v1/models/{name}",
    "/v1/models": "/v1/models",
    CHAT: CHAT,
}


@pytest.mark.parametrize(("path", "endpoint"), PATHS.items(), ids=PATHS.keys())
def test_a_path_of_nobody_is_not_logged(path: str, endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(make_world()) as gateway:
            await gateway.http.get(gateway.url + path, headers=AUTH)

    with caplog.at_level(logging.DEBUG, logger="headrace"):
        asyncio.run(main())
    ours = [JsonFormatter().format(record) for record in caplog.records if record.name.startswith("headrace")]
    (line,) = [told for told in map(json.loads, ours) if told["logger"] == "headrace.gateway.journal"]
    assert line["endpoint"] == endpoint
    assert "sesame" not in "".join(ours)


def test_a_book_only_grows() -> None:
    book = ClassBook()
    book.end(Outcome.GOOD, -1000, target_missed=False)
    book.end(Outcome.GOOD, 7, target_missed=False)
    assert (book.offered, book.offered_tokens) == (2, 7)
