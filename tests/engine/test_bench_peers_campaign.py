"""A run over servers that answer as the peers do: who is asked when, who sleeps meanwhile, what is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.engine import make_model
from benchmarks.engine.peers import campaign, cells, plan, servers
from benchmarks.engine.peers.processes import PROC, stat
from benchmarks.engine.peers.prompts import Prompts
from benchmarks.engine.peers.records import Load, Start, Store

ANSWERS = """
import http.server
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\\n\\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\\n\\ndata: [DONE]\\n\\n',
)
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(STATUS)
        self.send_header("Content-Length", str(sum(map(len, EVENTS))))
        self.end_headers()
        for event in EVENTS: self.wfile.write(event)
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
Asked = list[tuple[str, int, int, str]]  # server, round, concurrency, states of all


def state(pid: int) -> str:
    """As `ps` shows it."""
    found = stat(PROC / str(pid) / "stat")
    return "gone" if found is None else found[1][0]


def fake(name: str, status: int = 200) -> servers.Server:
    """A server that says one token to everybody."""

    def command(setup: servers.Setup, port: int) -> list[str]:
        return [sys.executable, "-c", ANSWERS.replace("PORT", str(port)).replace("STATUS", str(status))]

    return servers.Server(name, "0", command, lambda setup: {})


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., campaign.Campaign]:
    """A run of two rounds at c = 1, 2 with these servers."""
    words = [a + b + c for a in "bdfg" for b in "aeiou" for c in "lmnrst"]
    texts = (" " + " ".join(words) for _ in range(50))
    make_model.train_tokenizer(texts, 400).save(str(tmp_path / "tokenizer.json"))

    def made(*found: servers.Server) -> campaign.Campaign:
        monkeypatch.setattr(campaign, "settle", lambda: None)
        monkeypatch.setattr(campaign, "SERVERS", {server.name: server for server in found})
        names = tuple(server.name for server in found)
        return campaign.Campaign(
            settings=plan.Settings(names, rounds=2, starts=1, concurrency=(1, 2)),
            parts=("load",),
            setup=servers.Setup(tmp_path, tmp_path, 2),
            store=Store(tmp_path / "cells.jsonl"),
            logs=tmp_path / "logs",
            prompts=Prompts(tmp_path),
        )

    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is asked of whom, and who is awake then."""
    found: Asked = []
    alive: dict[str, int] = {}
    first, load = cells.first_token, cells.load

    def first_token(bench: cells.Bench) -> float:
        alive[bench.name] = bench.server.pid
        return first(bench)

    def recorded(bench: cells.Bench, round_: int, concurrency: int) -> Load:
        stopped = "".join("T" if state(alive[name]) == "T" else "-" for name in sorted(alive))
        found.append((bench.name, round_, concurrency, stopped))
        return load(bench, round_, concurrency)

    monkeypatch.setattr(cells, "first_token", first_token)
    monkeypatch.setattr(cells, "load", recorded)
    return found


def test_servers_are_asked_in_turn_while_the_others_sleep(
    begin: Callable[..., campaign.Campaign], asked: Asked
) -> None:
    run = begin(fake("a"), fake("b"))
    run.run()
    assert asked == [
        *(("a", 0, 1, "-T"), ("b", 0, 1, "T-")),
        *(("b", 0, 2, "T-"), ("a", 0, 2, "-T")),
        *(("b", 1, 1, "T-"), ("a", 1, 1, "-T")),
        *(("a", 1, 2, "-T"), ("b", 1, 2, "T-")),
    ]
    assert sum(isinstance(record, Start) for record in run.store.all()) == 2
    assert not run.failed
    assert run.left() == 0


def test_a_run_that_was_stopped_goes_on_with_what_is_missing(
    begin: Callable[..., campaign.Campaign], asked: Asked
) -> None:
    kept = begin(fake("a"), fake("b"))
    kept.run()
    path = kept.logs.parent / "cells.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not (b'"server":"b"' in line and b'"round":1' in line)))
    asked.clear()
    begin(fake("a"), fake("b")).run()
    assert [what[:3] for what in asked] == [("b", 1, 1), ("b", 1, 2)]


def test_a_server_that_answers_nothing_is_left_out_and_ended(
    begin: Callable[..., campaign.Campaign], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []
    stop = servers.stop
    monkeypatch.setattr(servers, "stop", lambda process: (stop(process), stopped.append(len(asked))))
    run = begin(fake("a", status=500), fake("b"))
    run.run()
    assert "the first request failed: HTTP 500" in run.failed["a"]
    assert {name for name, *_ in asked} == {"b"}
    assert stopped == [0, 4]  # before anybody was measured, and at the end


def test_a_server_that_sleeps_is_stopped(tmp_path: Path) -> None:
    setup = servers.Setup(tmp_path, tmp_path, 1)
    with servers.running(fake("a"), setup, tmp_path / "log") as alive:
        alive.sleep()
        began = time.monotonic()
    assert time.monotonic() - began < servers.STOP_S
    assert state(alive.pid) in ("gone", "Z")
