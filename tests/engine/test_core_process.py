"""The core as a real process with a real model: the link, its ends, and how it dies."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace_engine.config import EngineConfig
from headrace_engine.core.failure import StartError
from headrace_engine.core.messages import (
    Abort,
    Control,
    Delta,
    Deltas,
    Failed,
    FromCore,
    Ready,
    StateReport,
    Submit,
    ToCore,
    encoder,
    from_core_decoder,
)
from headrace_engine.core.process import EXIT_START, run
from headrace_engine.models.random import write_checkpoint
from headrace_engine.runner.build import build
from headrace_wire.protocol import Finish, Sampling
from headrace_wire.reasons import Reason

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "dtype": "float32",
}
PATIENCE_S = 60.0


class Core:
    """A core process and the API process's end of its link."""

    def __init__(self, folder: Path, config: EngineConfig):
        self._context = zmq.Context()
        self._to = self._context.socket(zmq.PUSH)
        self._from = self._context.socket(zmq.PULL)
        addresses = [f"ipc://{folder}/{name}" for name in ("to", "from")]
        self._to.bind(addresses[0])
        self._from.bind(addresses[1])
        self._encode, self._decode = encoder(), from_core_decoder()
        self.process: SpawnProcess = multiprocessing.get_context("spawn").Process(
            target=run, args=(config, addresses[0], addresses[1])
        )
        self.process.start()
        self.deltas: dict[str, list[Delta]] = {}
        self.states: list[StateReport] = []
        self.ready: Ready | None = None

    def send(self, message: ToCore) -> None:
        self._to.send(self._encode.encode(message))

    def submit(self, name: str, tokens: list[int], max_tokens: int, **more: Any) -> None:
        sampling = more.pop("sampling", Sampling(temperature=0.0))
        self.send(
            Submit(id=name, tokens=array("i", tokens).tobytes(), sampling=sampling, max_tokens=max_tokens, **more)
        )

    def receive(self) -> FromCore:
        """The next message, kept in `deltas`, `states` or `ready` too."""
        if not self._from.poll(int(PATIENCE_S * 1000)):
            raise TimeoutError("the core said nothing")
        message = self._decode.decode(self._from.recv())
        if isinstance(message, Deltas):
            for delta in message.items:
                self.deltas.setdefault(delta.id, []).append(delta)
        if isinstance(message, StateReport):
            self.states.append(message)
        if isinstance(message, Ready):
            self.ready = message
        return message

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("it did not happen")
            self.receive()

    def end(self, name: str) -> Delta:
        """Waits for the end of a request."""
        self.until(lambda: any(d.finish or d.error for d in self.deltas.get(name, [])))
        return self.deltas[name][-1]

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(PATIENCE_S)
        self._to.close(0)
        self._from.close(0)
        self._context.term()


def settings(path: Path, **more: Any) -> EngineConfig:
    values = {"kv_cache_bytes": 4 << 20, "threads": 1, "max_sequences": 4, "max_batch_tokens": 64} | more
    return EngineConfig(path=str(path), served_name="tiny", instance="pod-7", **values)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, CONFIG)
    return folder


@pytest.fixture(scope="module")
def core(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    """It serves until the last test that uses it stops it."""
    core = Core(tmp_path_factory.mktemp("core"), settings(model))
    try:
        core.until(lambda: core.ready is not None)
        yield core
    finally:
        core.close()


def test_ignores_the_terminals_interrupt(core: Core) -> None:
    assert core.process.pid is not None
    os.kill(core.process.pid, signal.SIGINT)
    core.submit("a", [1], max_tokens=3)
    assert core.end("a").finish is Finish.LENGTH


def test_serves_aborts_reports_and_stops(core: Core) -> None:
    ready = core.ready
    assert isinstance(ready, Ready)
    assert (ready.model.name, ready.model.max_tokens, ready.model.kv_dtype) == ("tiny", 4096, "float32")
    assert ready.total_pages == ready.memory["pool_pages"]
    assert ready.memory["pool_bytes"] == (ready.total_pages + 1) * ready.memory["page_bytes"] <= 4 << 20
    core.submit("endless", [1, 2, 3], max_tokens=4000)
    core.submit("short", [5] * 150, max_tokens=7, sampling=Sampling(seed=1))
    assert core.end("short").finish is Finish.LENGTH
    assert sum(len(delta.tokens) for delta in core.deltas["short"]) == 7
    core.submit("bad", [1000], max_tokens=1)
    assert core.end("bad").error is Reason.INVALID_REQUEST
    core.send(Abort(ids=["endless"]))
    assert core.end("endless").error is Reason.CANCELLED
    core.until(lambda: bool(core.states) and core.states[-1].state.running == 0)
    state = core.states[-1].state
    assert (state.instance, state.cache_root, state.holders) == ("pod-7", ready.cache_root, {})
    assert state.free + state.evictable == state.total == ready.total_pages
    core.submit("cut", [1], max_tokens=4000)
    core.until(lambda: "cut" in core.deltas)
    core.send(Control(kind="stop"))
    assert core.end("cut").error is Reason.DRAINING
    core.process.join(PATIENCE_S)
    assert core.process.exitcode == 0


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        pytest.param(
            {"kv_cache_bytes": 1000}, "OutOfMemory", "one sequence of 4096 tokens needs 64 pages", id="memory"
        ),
        pytest.param({"path": "/nowhere"}, "ModelInvalid", "config.json is missing", id="no-folder"),
        pytest.param({"max_model_len": 5000}, "ModelInvalid", "5000 tokens was asked for", id="context"),
    ],
)
def test_what_cannot_be_built_says_why(model: Path, more: dict[str, Any], reason: str, words: str) -> None:
    with pytest.raises(StartError, match=words) as caught:
        build(settings(Path(more.pop("path", model)), **more))
    assert caught.value.reason == reason


def test_says_why_it_cannot_start(model: Path, tmp_path: Path) -> None:
    core = Core(tmp_path, settings(model, max_model_len=5000))
    try:
        failed = core.receive()
        assert isinstance(failed, Failed)
        assert failed.reason == "ModelInvalid"
        assert "5000 tokens was asked for (--max-model-len)" in failed.message
        core.process.join(PATIENCE_S)
        assert core.process.exitcode == EXIT_START
    finally:
        core.close()


@pytest.mark.parametrize(
    ("level", "said"),
    [("info", ["core started", "the core cannot start"]), ("error", ["the core cannot start"])],
)
def test_logs_as_it_is_told(
    level: str, said: list[str], model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused: dict[str, Any] = {"max_sequences": 2, "max_batch_tokens": 1}  # before anything is loaded
    core = Core(tmp_path, settings(model, log_level=level, threads_wait="as agreed", **refused))
    try:
        assert isinstance(core.receive(), Failed)
        core.process.join(PATIENCE_S)
    finally:
        core.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == said
    assert {line.get("threads_wait", "as agreed") for line in lines} == {"as agreed"}
    assert all("threads_wait" in line for line in lines if line["message"] == "core started")


PARENT = """
import os, sys, time
sys.path[:0] = {path!r}
import multiprocessing
from headrace_engine.config import EngineConfig
from headrace_engine.core.process import run
import zmq

if __name__ == "__main__":
    folder, model = sys.argv[1:]
    context = zmq.Context()
    to, back = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    to.bind(f"ipc://{{folder}}/to")
    back.bind(f"ipc://{{folder}}/from")
    config = EngineConfig(path=model, served_name="tiny", kv_cache_bytes=4 << 20, threads=1)
    child = multiprocessing.get_context("spawn").Process(
        target=run, args=(config, f"ipc://{{folder}}/to", f"ipc://{{folder}}/from")
    )
    child.start()
    back.recv()
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_dies_with_its_parent(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(path=[p for p in sys.path if p]))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(model)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    core = int(parent.stdout.readline())
    assert alive(core)
    parent.kill()
    parent.wait(PATIENCE_S)
    parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while alive(core):
        assert time.monotonic() < deadline, "the core outlived its parent"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Is it running (and not just a zombie that nobody waited for)?"""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
