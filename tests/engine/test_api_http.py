"""HTTP as clients really speak it: methods, content types, pipelines, chunks, heads and bodies that never end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.testing.engine_process import EngineProcess
from headrace.testing.leaping import LeapingLoop
from headrace_engine.api import connection
from headrace_engine.api.connection import HEAD_S, MAX_HEAD, Connection
from headrace_engine.api.http import UPLOAD_S, ClientLeft, check_content, left, read_body
from headrace_wire.reasons import Reason, RequestError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"model": "demo", "prompt": "TTFT is", "max_tokens": 2, "temperature": 0}
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def client(demo_engine: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_engine.url, timeout=LIMIT_S) as client:
        yield client


class TestMethods:
    @pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/demo", "/version", "/metrics"])
    def test_head_is_get_without_a_body(self, client: httpx.Client, path: str) -> None:
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == client.get(path).headers["content-type"]

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("GET", CHAT, "POST"),
            ("HEAD", COMPLETIONS, "POST"),
            ("OPTIONS", CHAT, "POST"),
            ("DELETE", "/v1/models/demo", "GET, HEAD"),
            ("PUT", "/tokenize", "POST"),
            ("POST", "/health", "GET, HEAD"),
            ("PATCH", "/headrace/v1/cache/reset", "POST"),
        ],
    )
    def test_others_are_told_which(self, client: httpx.Client, method: str, path: str, allowed: str) -> None:
        response = client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert method == "HEAD" or response.json()["error"]["code"] == "method_not_allowed"

    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("/", "not_found"),
            ("/v1", "not_found"),
            ("/v1/embeddings", "not_found"),
            ("/v1/models/x", "model_not_found"),
        ],
    )
    def test_paths_that_are_none(self, client: httpx.Client, path: str, code: str) -> None:
        response = client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, code)


class TestContent:
    @pytest.mark.parametrize(
        "said",
        ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", "", None],
        ids=["plain", "charset", "plus-json", "empty", "absent"],
    )
    def test_json_is_taken(self, client: httpx.Client, said: str | None) -> None:
        headers = {} if said is None else {"content-type": said}
        assert client.post(COMPLETIONS, content=json.dumps(BODY), headers=headers).status_code == 200

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
    @pytest.mark.parametrize(
        "header",
        [
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "multipart/form-data; boundary=x"},
            {"content-encoding": "gzip"},
        ],
        ids=["text", "form", "multipart", "gzip"],
    )
    def test_others_are_refused_with_the_header(self, client: httpx.Client, path: str, header: dict[str, str]) -> None:
        response = client.post(path, content=json.dumps(BODY), headers=header)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (415, "unsupported_media_type")
        assert error["message"].startswith(next(iter(header)))

    def test_headers_are_read_wherever_they_stand(self) -> None:
        check_content({"headers": [(b"x", b"y"), (b"content-type", b" application/json ;x=y")]}, 100)
        with pytest.raises(RequestError) as caught:
            check_content({"headers": [(b"content-encoding", b"identity"), (b"content-type", b"text/json")]}, 100)
        assert caught.value.reason is Reason.UNSUPPORTED_MEDIA


def request(path: str = COMPLETIONS, body: bytes | None = None, *, head: bytes = b"", method: str = "POST") -> bytes:
    data = json.dumps(BODY).encode() if body is None else body
    length = b"" if method == "GET" else b"content-length: %d\r\n" % len(data)
    return (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\n".encode()
        + head
        + length
        + b"\r\n"
        + (b"" if method == "GET" else data)
    )


def talk(engine: EngineProcess, *parts: bytes, responses: int = 1) -> list[httpx.Response]:
    """Sends the parts on one connection; the responses that came before it closed or were complete."""
    with socket.create_connection(("127.0.0.1", engine.port), timeout=LIMIT_S) as raw:
        for part in parts:
            raw.sendall(part)
        file = raw.makefile("rb")
        return [answer for _ in range(responses) if (answer := _response(file)) is not None]


def _response(file: Any) -> httpx.Response | None:
    status = file.readline().split()
    if not status:
        return None
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = file.read(int(headers["content-length"])) if "content-length" in headers else b""
    return httpx.Response(int(status[1]), headers=headers, content=body)


class TestConnections:
    def test_a_pipeline_is_answered_in_order(self, demo_engine: EngineProcess) -> None:
        other = json.dumps({**BODY, "max_tokens": 5, "ignore_eos": True}).encode()
        data = request() + request("/health", method="GET") + request(body=other) + request("/nowhere", method="GET")
        first, health, second, lost = talk(demo_engine, data, responses=4)
        assert first.json()["usage"]["completion_tokens"] == 2
        assert health.json() == {"status": "ok"}
        assert second.json()["usage"]["completion_tokens"] == 5
        assert lost.status_code == 404

    def test_a_body_in_chunks_of_a_byte(self, demo_engine: EngineProcess) -> None:
        data = json.dumps(BODY).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data)
        (response,) = talk(demo_engine, head, chunks[:100], chunks[100:], b"0\r\n\r\n")
        assert response.json()["usage"]["completion_tokens"] == 2

    def test_a_client_that_asks_before_it_sends(self, demo_engine: EngineProcess) -> None:
        goes_on, response = talk(demo_engine, request(head=b"expect: 100-continue\r\n"), responses=2)
        assert (goes_on.status_code, response.status_code) == (100, 200)

    def test_a_client_that_asks_before_it_sends_too_much(self, demo_engine: EngineProcess) -> None:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10000000\r\n\r\n"
        (refused,) = talk(demo_engine, head.encode())
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")

    @pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff"], ids=["no-json", "no-object", "no-text"])
    def test_a_refusal_keeps_the_connection(self, demo_engine: EngineProcess, body: bytes) -> None:
        refused, health = talk(demo_engine, request(body=body), request("/health", method="GET"), responses=2)
        assert (refused.status_code, health.status_code) == (400, 200)

    @pytest.mark.parametrize("method", ["GET", "PUT"])
    def test_an_unread_body_does_not_become_the_next_request(self, demo_engine: EngineProcess, method: str) -> None:
        body = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
        head = b"%s /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (method.encode(), len(body))
        lost, health = talk(
            demo_engine,
            head + body,
            request("/health", method="GET"),
            responses=2,
        )
        assert (lost.status_code, health.json()) == (404, {"status": "ok"})

    @pytest.mark.parametrize(
        "data",
        [
            b"\0\1\2\r\n\r\n",
            bytes.fromhex("1603010200010001fc0303"),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ],
        ids=["bytes", "tls", "http2", "negative-length", "two-lengths", "no-chunk"],
    )
    def test_what_is_no_http_is_told_so(self, demo_engine: EngineProcess, data: bytes) -> None:
        (response,) = talk(demo_engine, data)
        assert (response.status_code, response.headers["connection"]) == (400, "close")
        assert response.json()["error"]["code"] == "invalid_request"

    def test_an_endless_head_is_cut_off(self, demo_engine: EngineProcess, client: httpx.Client) -> None:
        """The client may see the refusal or, still sending, a reset; the engine keeps at most the bound of it."""
        try:
            answers = talk(demo_engine, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 20_000_000)
        except OSError as error:
            assert isinstance(error, ConnectionError), error
        else:
            assert [answer.status_code for answer in answers] in ([431], [])
        assert client.get("/health").status_code == 200

    def test_a_head_below_the_bound_is_read(self, demo_engine: EngineProcess) -> None:
        (response,) = talk(demo_engine, request("/health", method="GET", head=b"x: " + b"a" * 30_000 + b"\r\n"))
        assert response.status_code == 200


class TestNothingWaitsForEver:
    """At the bound itself: time is the loop's own, and passes when nothing else happens."""

    def test_a_body_that_does_not_come(self) -> None:
        assert self._refused_after(never()) == (Reason.UPLOAD_TOO_SLOW, UPLOAD_S)

    def test_a_body_that_trickles(self) -> None:
        assert self._refused_after(trickle()) == (Reason.UPLOAD_TOO_SLOW, UPLOAD_S)

    def _refused_after(self, receive: Any) -> tuple[Reason, float]:
        async def main() -> Reason:
            with pytest.raises(RequestError) as caught:
                await read_body(receive, 1 << 20)
            return caught.value.reason

        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            began = runner.get_loop().time()
            return runner.run(main()), round(runner.get_loop().time() - began, 3)

    def test_a_client_that_leaves_is_seen_in_no_time(self) -> None:
        async def gone() -> dict[str, Any]:
            await asyncio.sleep(1.0)
            return {"type": "http.disconnect"}

        async def main() -> float:
            await left(gone)
            with pytest.raises(ClientLeft):
                await read_body(gone, 10)
            return asyncio.get_running_loop().time()

        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            began = runner.get_loop().time()
            assert runner.run(main()) - began == pytest.approx(2.0, abs=0.01)

    @pytest.mark.parametrize("data", [b"", b"GET /health HT"], ids=["silent", "half-a-head"])
    def test_a_head_that_does_not_come(self, data: bytes) -> None:
        """The timer of a connection is the loop's: it is set for the bound, and what it does closes the connection."""
        timers: list[tuple[float, Any]] = []
        transport = Wire()
        one = made(transport, timers)
        one.data_received(data)
        ((delay, late),) = timers
        assert delay == HEAD_S
        late()
        assert transport.closed
        assert transport.written.startswith(b"HTTP/1.1 408 ") is bool(data)

    def test_heads_are_bounded_over_many_reads(self) -> None:
        transport = Wire()
        one = made(transport, [])
        one.data_received(b"GET /health HTTP/1.1\r\nx: ")
        reads = 0
        while not transport.closed and reads < 1000:
            one.data_received(b"a" * 1000)
            reads += 1
        assert MAX_HEAD // 1000 <= reads <= MAX_HEAD // 1000 + 1
        assert transport.written.startswith(b"HTTP/1.1 431 ")


def never() -> Any:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    return receive


def trickle() -> Any:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(1.0)
        return {"type": "http.request", "body": b" ", "more_body": True}

    return receive


class Wire(asyncio.Transport):
    """What a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def made(transport: Wire, timers: list[tuple[float, Any]]) -> Connection:
    """A connection whose timers are only noted."""
    import uvicorn
    from uvicorn.server import ServerState

    class Loop:
        def call_later(self, delay: float, call: Any, *more: Any) -> asyncio.TimerHandle:
            timers.append((delay, call))
            return asyncio.TimerHandle(delay, call, (), asyncio.new_event_loop())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is complete")

    config = uvicorn.Config(app, http=connection.Connection, ws="none", lifespan="off", log_config=None)
    one = Connection(config, ServerState(), {}, Loop())  # type: ignore[arg-type]
    one.connection_made(transport)
    return one
