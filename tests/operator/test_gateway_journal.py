"""The line that each request leaves in the gateway's log, and the id that leads to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from headrace.cli.logs import JsonFormatter, TextFormatter
from headrace.testing.fake_engine import FakeEngine, Fault
from headrace.testing.fake_world import FakeGateway, eventually, make_tenant, make_world, serving, set_engines

CHAT = "/v1/chat/completions"
SECRET = "sesame"
AUTH = {"authorization": "Bearer key"}
Serve = Callable[[FakeGateway, FakeEngine], Awaitable[Any]]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, **fields}


async def chat(gateway: FakeGateway, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await gateway.http.post(gateway.url + CHAT, json=body(**fields), headers=AUTH | (headers or {}))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the log holds, read back as a log collector would."""
    return [json.loads(JsonFormatter().format(record)) for record in caplog.records]


def serve(caplog: pytest.LogCaptureFixture, work: Serve, **world: Any) -> list[dict[str, Any]]:
    """The lines of ended requests, once `work` has run against a gateway with one engine."""

    async def main() -> None:
        made = make_world([], [make_tenant(**world)])
        async with FakeEngine(tokens_per_s=1000.0) as engine, serving(made) as gateway:
            set_engines(made, engine)
            key = next(iter(made.models))
            await eventually(lambda: _known(gateway, key))
            await work(gateway, engine)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    return [line for line in lines(caplog) if line["logger"] == "headrace.gateway.journal"]


async def _known(gateway: FakeGateway, key: tuple[str, str]) -> bool:
    return gateway.service.fleet.context(key) is not None


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answered_request_leaves_one_line(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    (line,) = serve(caplog, lambda gateway, _: chat(gateway, {"x-request-id": "mine-1"}, stream=stream))
    assert line["level"] == "info" and line["message"] == "request ended"
    told = {name: line[name] for name in ("request_id", "endpoint", "status", "outcome", "reason", "namespace")}
    assert told == {
        "request_id": "mine-1",
        "endpoint": CHAT,
        "status": 200,
        "outcome": "good",
        "reason": "",
        "namespace": "team-a",
    }
    assert (line["tenant"], line["model"], line["class"], line["stream"]) == ("search", "m", "interactive", stream)
    assert line["prompt_tokens"] > 4 and line["completion_tokens"] == 4 and line["cached_tokens"] == 0
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert line["sent"] == 1 and line["engine"]


def test_the_engine_gets_the_id_that_the_client_knows(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def work(gateway: FakeGateway, engine: FakeEngine) -> None:
        for headers in ({"x-request-id": "mine-1"}, {"x-request-id": "mine-1"}, {}):
            answer = await chat(gateway, headers)
            seen.append(answer.headers["x-request-id"])
        seen.extend(request.raw["headrace"]["id"] for request in engine.seen)

    first, second, third = serve(caplog, work)
    assert seen[:2] == ["mine-1", "mine-1"] and seen[2] == third["request_id"]
    assert seen[3:] == [first["engine_id"], second["engine_id"], third["engine_id"]]
    assert seen[3].startswith("mine-1~") and seen[4].startswith("mine-1~") and seen[3] != seen[4], "unique all the same"
    assert seen[5] == seen[2]


REFUSED = {
    "no JSON": (AUTH, b"{", 400, "invalid_request", "search"),
    "a wrong key": ({"authorization": "Bearer hidden-key"}, b"{}", 401, "invalid_api_key", ""),
    "another model": (AUTH, json.dumps(body(model="other")).encode(), 404, "model_not_found", "search"),
    "a field of nobody": (AUTH, json.dumps(body(frobnicate=SECRET)).encode(), 400, "invalid_request", "search"),
    "more than the context": (
        AUTH,
        json.dumps(body(messages=[{"role": "user", "content": SECRET * 9000}])).encode(),
        400,
        "context_length_exceeded",
        "search",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_leaves_a_line_with_its_reason(caplog: pytest.LogCaptureFixture, name: str) -> None:
    headers, data, status, reason, tenant = REFUSED[name]
    answers: list[httpx.Response] = []

    async def work(gateway: FakeGateway, _: FakeEngine) -> None:
        answers.append(await gateway.http.post(gateway.url + CHAT, content=data, headers=headers))

    (line,) = serve(caplog, work)
    assert (line["status"], line["outcome"], line["reason"], line["tenant"]) == (status, "refused", reason, tenant)
    assert line["level"] == "info"
    assert answers[0].headers["x-request-id"] == answers[0].json()["error"]["request_id"] == line["request_id"]
    assert line["total_ms"] >= 0


def test_an_engine_that_fails_leads_to_the_request(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[httpx.Response] = []

    async def work(gateway: FakeGateway, engine: FakeEngine) -> None:
        engine.inject(Fault.REFUSE, times=9)
        answers.append(await chat(gateway))

    (line,) = serve(caplog, work)
    failed = [each for each in lines(caplog) if each["message"] == "an engine failed a request"]
    assert answers[0].status_code == line["status"] >= 500
    assert line["level"] == "warning" and line["outcome"] == "error" and line["reason"]
    assert answers[0].json()["error"]["request_id"] == line["request_id"]
    assert failed and all(each["engine_id"] == line["engine_id"] and each["engine"] for each in failed)
    assert line["sent"] == len(failed)


def test_a_shed_and_a_quota_request_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async def work(gateway: FakeGateway, _: FakeEngine) -> None:
        await chat(gateway)
        await chat(gateway)

    first, second = serve(caplog, work, quota={"requestsPerMinute": 1})
    assert (first["outcome"], second["outcome"], second["reason"]) == ("good", "quota", "quota_exceeded")
    assert second["status"] == 429 and second["queue_ms"] is None and second["ttft_ms"] is None
    assert second["sent"] == 0 and second["completion_tokens"] == 0


def test_a_client_that_left_has_no_status_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def work(gateway: FakeGateway, engine: FakeEngine) -> None:
        engine.inject(Fault.HANG)
        asking = asyncio.create_task(chat(gateway, max_tokens=50))
        await eventually(lambda: _seen(engine))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(gateway.idle)

    (line,) = serve(caplog, work)
    assert (line["outcome"], line["reason"], line["status"]) == ("cancelled", "cancelled", None)


async def _seen(engine: FakeEngine) -> bool:
    return bool(engine.seen)


def test_other_routes_have_an_id_and_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[httpx.Response] = []

    async def work(gateway: FakeGateway, _: FakeEngine) -> None:
        for path in ("/v1/models", "/chat/completions"):
            answers.append(await gateway.http.get(gateway.url + path, headers=AUTH | {"x-request-id": "mine-2"}))

    listed, lost = serve(caplog, work)
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine-2", "mine-2"]
    assert (listed["endpoint"], listed["status"], listed["outcome"]) == ("/v1/models", 200, "good")
    assert (lost["status"], lost["outcome"], lost["reason"]) == (404, "refused", "not_found")
    assert answers[1].json()["error"]["request_id"] == "mine-2"


def test_a_route_that_fails_has_a_line_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    answers: list[httpx.Response] = []

    async def work(gateway: FakeGateway, _: FakeEngine) -> None:
        monkeypatch.setattr("headrace.gateway.rest.authenticate", broken)
        answers.append(await gateway.http.get(gateway.url + "/v1/models", headers=AUTH))

    (line,) = serve(caplog, work)
    assert answers[0].status_code == line["status"] == 500
    assert (line["outcome"], line["level"]) == ("error", "warning")
    assert answers[0].headers["x-request-id"] == line["request_id"]


def test_what_is_no_http_has_an_id_and_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    said = bytearray()

    async def work(gateway: FakeGateway, _: FakeEngine) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.service.port)
        writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
        said.extend(await reader.read())
        writer.close()

    (line,) = serve(caplog, work)
    head, _, told = bytes(said).partition(b"\r\n\r\n")
    assert json.loads(told)["error"]["request_id"] == line["request_id"]
    assert f"x-request-id: {line['request_id']}".encode() in head
    assert (line["status"], line["reason"]) == (400, "invalid_request")


def test_lines_hold_neither_prompts_nor_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def work(gateway: FakeGateway, engine: FakeEngine) -> None:
        for stream in (True, False):
            await chat(gateway, stream=stream)
        for headers, data, *_ in REFUSED.values():
            await gateway.http.post(gateway.url + CHAT, content=data, headers=headers)
        engine.inject(Fault.REFUSE, times=9)
        await chat(gateway)

    with caplog.at_level(logging.DEBUG):
        assert len(serve(caplog, work)) == 3 + len(REFUSED)
    ours = [record for record in caplog.records if record.name.startswith("headrace")]
    for formatter in (JsonFormatter(), TextFormatter()):
        text = "\n".join(map(formatter.format, ours))
        assert SECRET not in text and "hidden-key" not in text and "Bearer" not in text and "frobnicate" not in text


def test_nothing_is_written_above_the_level(caplog: pytest.LogCaptureFixture) -> None:
    async def work(gateway: FakeGateway, engine: FakeEngine) -> None:
        logging.getLogger("headrace.gateway.journal").setLevel(logging.WARNING)
        await chat(gateway)
        engine.inject(Fault.REFUSE, times=9)
        await chat(gateway)

    try:
        (line,) = serve(caplog, work)
    finally:
        logging.getLogger("headrace.gateway.journal").setLevel(logging.NOTSET)
    assert line["outcome"] == "error"
