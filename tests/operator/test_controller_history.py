"""History from Prometheus: read over HTTP, shown in a condition, and missed by nobody when it is away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from headrace.cluster.lease import Leader
from headrace.cluster.resources import MODELS
from headrace.controller.chronicle import EVERY_S, IDLE_S, Chronicle
from headrace.controller.objects import models_in
from headrace.controller.queue import KeyedQueue
from headrace.controller.shared import Notes
from headrace.controller.store import Store
from headrace.controller.work import Work
from headrace.metrics.history import History, attainment_query, read_vector, words
from headrace.testing.fake_cluster import FakeCluster


class FakePrometheus(HTTPServer):
    """Answers every instant query with `vector`; 500 where it is None."""

    vector: list[Any] | None = None
    queries: list[str]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, FakePrometheus)
        server.queries.append(parse_qs(urlparse(self.path).query)["query"][0])
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": server.vector}}).encode()
        self.send_response(200 if server.vector is not None else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    server = FakePrometheus(("127.0.0.1", 0), _Handler)
    server.queries = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def entry(name: str, value: str) -> dict[str, Any]:
    return {"metric": {"class": name}, "value": [0, value]}


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        pytest.param([entry("a", "99.7"), entry("b", "50")], {"a": 99, "b": 50}, id="rounded down"),
        pytest.param([entry("a", "NaN")], {}, id="nothing offered is unknown, not zero"),
        pytest.param([entry("a", "0")], {"a": 0}, id="zero is zero"),
        pytest.param([entry("a", "100.2")], {"a": 100}, id="extrapolation does not exceed all"),
        pytest.param([], {}, id="no series"),
    ],
)
def test_vectors(vector: list[Any], expected: dict[str, int]) -> None:
    assert read_vector(vector) == expected


def test_the_query_names_the_model_and_what_counts_as_offered() -> None:
    query = attainment_query("team", "demo", "1h")
    assert query.count('model_namespace="team",model="demo"') == 2
    assert 'outcome=~"good|late|error|shed"' in query
    assert "[1h]" in query
    assert words({"b": 1, "a": 99}, "1h") == "over 1h: a 99 %, b 1 % good"


def test_what_prometheus_says_reaches_the_notes_and_its_absence_empties_them(prometheus: FakePrometheus) -> None:
    async def main() -> None:
        fake, store, queue, notes = FakeCluster(), Store(), KeyedQueue[Work](), Notes()
        spec = {"source": {"uri": "builtin://demo"}}
        store.put(MODELS, await fake.create(MODELS, {"metadata": {"name": "demo", "namespace": "team"}, "spec": spec}))
        (model,) = models_in(store)
        history = History(f"http://127.0.0.1:{prometheus.server_port}")
        chronicle = Chronicle(store, notes, history, Leader(fake, "hr", "l", "me"), queue)
        key = ("team", "demo")
        prometheus.vector = [entry("default", "97.5")]
        await chronicle.look(model)
        assert notes.of(key).history == "over 1h: default 97 % good"
        assert await queue.get() == (MODELS, key)
        queue.done((MODELS, key))
        await chronicle.look(model)
        assert queue.idle, "nothing new, nothing to do"
        prometheus.vector = None
        await chronicle.look(model)
        assert notes.of(key).history == ""
        assert len(prometheus.queries) >= 3

    asyncio.run(main())


def test_the_first_look_is_as_soon_as_there_is_a_model(
    prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a minute after the start: then, and while another leads, it only waits."""
    waits: list[float] = []

    async def main() -> None:
        fake, store, queue, notes = FakeCluster(), Store(), KeyedQueue[Work](), Notes()
        leader = _Leading(fake, "hr", "l", "me")
        spec = {"source": {"uri": "builtin://demo"}}
        made = await fake.create(MODELS, {"metadata": {"name": "demo", "namespace": "team"}, "spec": spec})
        prometheus.vector = [entry("default", "97.5")]
        steps = [lambda: store.put(MODELS, made), lambda: setattr(leader, "leads", True)]

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if not steps:
                raise asyncio.CancelledError
            steps.pop(0)()

        monkeypatch.setattr("headrace.controller.chronicle.asyncio.sleep", sleep)
        history = History(f"http://127.0.0.1:{prometheus.server_port}")
        with pytest.raises(asyncio.CancelledError):
            await Chronicle(store, notes, history, leader, queue).run()
        assert notes.of(("team", "demo")).history == "over 1h: default 97 % good"

    asyncio.run(main())
    assert waits == [IDLE_S, IDLE_S, EVERY_S]
    assert len(prometheus.queries) == 1


class _Leading(Leader):
    leads = False

    @property
    def leading(self) -> bool:
        return self.leads
