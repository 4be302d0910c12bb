"""Load of before reaches the new leader's memory from Prometheus: over HTTP, once, and from no liar."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from headrace.api.model import Model
from headrace.controller.chronicle import Chronicle
from headrace.controller.objects import models_in
from headrace.metrics.history import RATE_S, History, offered_query, read_matrix
from headrace.scaling.recall import Point
from headrace.scaling.record import replay
from headrace.testing.stage import KEY, START, Stage, play


class FakePrometheus(HTTPServer):
    """Answers range queries with `matrix`; 500 where it is None."""

    matrix: Any = None
    asked: list[dict[str, list[str]]]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server, found = self.server, urlparse(self.path)
        assert isinstance(server, FakePrometheus)
        ranged = found.path.endswith("query_range")
        if ranged:
            server.asked.append(parse_qs(found.query))
        result = server.matrix if ranged else []
        body = json.dumps({"status": "success", "data": {"result": result}}).encode()
        self.send_response(200 if result is not None else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    server = FakePrometheus(("127.0.0.1", 0), _Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def matrix(end: float, rate: Callable[[float], Any] = lambda _: 0) -> list[Any]:
    times = [end - 15.0 * i for i in reversed(range(120))]
    return [{"metric": {}, "values": [[at, str(rate(at))] for at in times]}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([], (), id="no series"),
        pytest.param([{"values": [[100, "2.5"]]}], (Point(100 - RATE_S / 2, 2.5),), id="a mean of the minute before"),
        pytest.param([{"values": []}], (), id="no points"),
    ],
)
def test_matrices(given: Any, expected: tuple[Point, ...]) -> None:
    assert read_matrix(given) == expected


def test_points_that_are_no_numbers_are_left_to_the_reader() -> None:
    (point,) = read_matrix([{"values": [[100, "NaN"]]}])
    assert math.isnan(point.rate)


def test_the_range_query_counts_what_was_offered() -> None:
    query = offered_query("team", "demo")
    assert query.startswith('sum(rate(headrace_requests_total{model_namespace="team",model="demo"')
    assert 'outcome=~"good|late|error|shed"' in query


def chronicle(on: Stage, prometheus: FakePrometheus) -> Chronicle:
    history = History(f"http://127.0.0.1:{prometheus.server_port}")
    return Chronicle(on.store, on.notes, history, on.leader, on.queue, on.clock)


def demo(on: Stage) -> Model:
    (model,) = models_in(on.store)
    return model


def recalls(on: Stage) -> bool:
    return on.actor._memory[KEY].window.load.recalls


def test_a_new_leader_recalls_once_and_its_recording_replays(prometheus: FakePrometheus) -> None:
    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        looks = chronicle(on, prometheus)
        await on.pass_time(30)
        await looks.look(demo(on))
        assert prometheus.asked == [], "there is nothing to compare with yet"
        await on.pass_time(60)
        prometheus.matrix = matrix(on.clock())
        await looks.look(demo(on))
        await on.pass_time(5)
        assert recalls(on)
        await looks.look(demo(on))
        (asked,) = prometheus.asked
        assert float(asked["end"][0]) - float(asked["start"][0]) == 1800
        assert START + 60 < float(asked["end"][0]) <= on.clock()
        lines = on.actor.record.lines(KEY)
        began = [line for line in lines if '"kind":"window"' in line]
        assert ['"recalled":[0' in line for line in began] == [False, True], "what was decided before is kept"
        replayed = replay(lines)
        assert (replayed.decisions, replayed.differences) == (95, ())

    play(test)


ANSWERS: dict[str, Callable[[float], Any]] = {
    "an error": lambda end: None,
    "nothing": lambda end: [],
    "not a matrix": lambda end: {"a": 1},
    "no values": lambda end: [{"metric": {}}],
    "words": lambda end: matrix(end, lambda _: "many"),
    "NaN": lambda end: matrix(end, lambda _: math.nan),
    "negative": lambda end: matrix(end, lambda _: -1),
    "huge": lambda end: matrix(end, lambda _: 1e18),
    "another service's": lambda end: matrix(end, lambda _: 40),
    "stale": lambda end: matrix(end - 600),
    "two series": lambda end: matrix(end) * 2,
    "a number": lambda end: 5,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_not_believed_changes_no_decision(answer: Callable[[float], Any], prometheus: FakePrometheus) -> None:
    async def test(on: Stage) -> None:
        alone = Stage()
        for stage in (on, alone):
            await stage.model()
            await stage.pod("one")
            await stage.pass_time(90)
        prometheus.matrix = answer(on.clock())
        await chronicle(on, prometheus).look(demo(on))
        assert len(prometheus.asked) >= 1
        for stage in (on, alone):
            await stage.pass_time(5)
            stage.queued, stage.oldest_s, stage.in_flight = 50, 2.0, 64
            await stage.pass_time(5)
        assert not recalls(on)
        decided = [[line for line in s.actor.record.lines(KEY) if '"kind":"decision"' in line] for s in (on, alone)]
        assert decided[0] == decided[1]
        assert on.replicas == alone.replicas == 2

    play(test)


def test_an_answer_that_is_slow_keeps_no_decision_waiting(prometheus: FakePrometheus) -> None:
    """The loop that asks is another one than the loop that decides."""

    async def test(on: Stage) -> None:
        await on.model()
        await on.pod("one")
        await on.pass_time(90)
        asked, release = asyncio.Event(), asyncio.Event()

        class Slow(History):
            async def offered(self, *_: Any) -> tuple[Point, ...]:
                asked.set()
                await release.wait()
                return tuple(Point(on.clock() - 15 * i, 0.8) for i in range(120))

        url = f"http://127.0.0.1:{prometheus.server_port}"
        slow = Chronicle(on.store, on.notes, Slow(url), on.leader, on.queue, on.clock)
        waiting = asyncio.create_task(slow.look(demo(on)))
        await asked.wait()
        on.queued, on.oldest_s, on.in_flight = 50, 2.0, 64
        await on.pass_time(5)
        assert on.replicas == 2
        release.set()
        await waiting
        on.queued, on.oldest_s, on.in_flight = 0, None, 0
        await on.pass_time(5)
        assert recalls(on), "late is better than never"

    play(test)
