"""How an engine's process ends: drained, told twice, its core or its parent killed, or before it serves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx

from headrace.testing.engine_process import EngineProcess

COMPLETIONS = "/v1/completions"
GONE_S = 20.0  # ten times the promise, for a loaded machine; test_api_bounds holds the promise itself
LIMITS = ("--threads", "1", "--max-sequences", "4", "--kv-cache-bytes", "64Mi")
LONG: dict[str, Any] = {"model": "demo", "prompt": "TTFT is", "max_tokens": 1900, "ignore_eos": True}


class Modelless(EngineProcess):
    """An engine whose core has no model: for ends in which what is computed plays no part."""

    def __init__(self, *arguments: str):
        super().__init__("builtin://demo", *LIMITS, *arguments)
        self._command[1:3] = [str(Path(__file__).parent / "cores" / "modelless.py")]


def no_prompt_text_in(engine: EngineProcess) -> bool:
    return not any("TTFT is" in json.dumps(line) for line in engine.lines)


def _client(engine: EngineProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.url, timeout=60)


async def _not_ready(client: httpx.AsyncClient) -> httpx.Response:
    async with asyncio.timeout(10):
        while (ready := await client.get("/ready")).status_code == 200:  # noqa: ASYNC110  the engine tells nobody
            await asyncio.sleep(0.01)
    return ready


class TestEnds:
    def test_sigterm_drains(self) -> None:
        """Not ready at once; late requests are told; running ones finish; exit 0."""

        async def main() -> None:
            engine = await Modelless("--drain-seconds", "60").start()
            async with _client(engine) as client:
                body = {**LONG, "max_tokens": 300, "stream": True}
                async with client.stream("POST", COMPLETIONS, json=body) as stream:
                    lines = stream.aiter_lines()
                    await anext(lines)
                    engine.signal(signal.SIGTERM)
                    ready = await _not_ready(client)
                    late = await client.post(COMPLETIONS, json=LONG)
                    health = await client.get("/health")
                    state = (await client.get("/headrace/v1/state")).json()
                    rest = [line async for line in lines if line]
            assert ready.json() == {"status": "draining"}
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert "retry-after" in late.headers
            assert health.status_code == 200
            assert state["draining"] is True
            assert rest[-1] == "data: [DONE]"
            assert await engine.wait(10) == 0
            assert no_prompt_text_in(engine)

        asyncio.run(main())

    def test_the_end_of_the_grace_period_is_an_error_event(self) -> None:
        async def main() -> None:
            engine = await Modelless("--drain-seconds", "0.3").start()
            body = {**LONG, "stream": True, "n": 4}
            async with _client(engine) as client, client.stream("POST", COMPLETIONS, json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                engine.signal(signal.SIGTERM)
                rest = [line async for line in lines if line]
            error = json.loads(rest[-1].removeprefix("data: "))["error"]
            assert error["code"] == "draining"
            assert await engine.wait(10) == 0

        asyncio.run(main())

    def test_a_second_signal_does_not_wait(self) -> None:
        async def main() -> None:
            engine = await Modelless("--drain-seconds", "600").start()
            body = {**LONG, "stream": True, "n": 4}
            async with _client(engine) as client, client.stream("POST", COMPLETIONS, json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                engine.signal(signal.SIGTERM)
                await _not_ready(client)
                engine.signal(signal.SIGTERM)
                assert await engine.wait(10) == 0

        asyncio.run(main())

    def test_a_core_that_dies(self) -> None:
        """Streams end with an error event, health turns red, exit 70, and why is written down."""

        async def main(log: str) -> None:
            engine = await EngineProcess("builtin://demo", *LIMITS, env={"HEADRACE_TERMINATION_LOG": log}).start()
            async with _client(engine) as client:
                whole = asyncio.create_task(client.post(COMPLETIONS, json=LONG))
                async with client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as stream:
                    lines = stream.aiter_lines()
                    await anext(lines)
                    os.kill(engine.core_pid(), signal.SIGKILL)
                    died = time.monotonic()
                    rest = [line async for line in lines if line]
                error = json.loads(rest[-1].removeprefix("data: "))["error"]
                assert error["code"] == "engine_failed"
                assert (await whole).status_code == 502
                code = await engine.wait(GONE_S)
                assert time.monotonic() - died < GONE_S
                assert code == 70

        path = "/tmp/headrace-test-termination-" + str(os.getpid())
        try:
            asyncio.run(main(path))
            with open(path) as file:  # noqa: PTH123
                assert json.load(file)["reason"] == "EngineFailed"
        finally:
            os.unlink(path)  # noqa: PTH108

    def test_a_killed_parent_takes_its_core_with_it(self) -> None:
        async def main() -> None:
            engine = await Modelless().start()
            core = engine.core_pid()
            engine.signal(signal.SIGKILL)
            await engine.wait(10)
            until = time.monotonic() + 5
            while _alive(core):
                assert time.monotonic() < until
                await asyncio.sleep(0.02)

        asyncio.run(main())

    def test_sigterm_while_loading(self) -> None:
        async def main() -> None:
            engine = await EngineProcess("builtin://demo", *LIMITS).spawn()
            async with asyncio.timeout(60):
                while not any(line.get("message") == "starting" for line in engine.lines):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            engine.signal(signal.SIGTERM)
            assert await engine.wait(15) == 0

        asyncio.run(main())

    def test_an_address_in_use_is_one_sentence(self, demo_engine: EngineProcess) -> None:
        async def main() -> None:
            second = await EngineProcess("builtin://demo", "--port", str(demo_engine.port)).spawn()
            assert await second.wait(60) == 1
            assert any("choose another --port" in str(line.get("message")) for line in second.lines)
            assert not any("Traceback" in str(line) for line in second.lines)

        asyncio.run(main())

    def test_too_little_memory_is_said_with_the_arithmetic(self) -> None:
        async def main() -> None:
            engine = await EngineProcess("builtin://demo", "--kv-cache-bytes", "1Mi").spawn()
            assert await engine.wait(60) == 1
            lines = [line for line in engine.lines if line.get("reason") == "OutOfMemory" and line.get("file") == ""]
            assert any("2048 tokens" in line["message"] for line in lines)
            assert sum("2048 tokens" in json.dumps(line) for line in engine.lines) == 1, "said once"

        asyncio.run(main())


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
