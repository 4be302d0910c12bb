"""A real engine as a process of its own on loopback, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

START_S = 120.0  # a loaded machine imports torch slowly


class EngineProcess:
    """`async with EngineProcess("builtin://demo", "--max-sequences", "2") as engine: engine.url`."""

    def __init__(self, path: str, *arguments: str, env: Mapping[str, str | None] | None = None):
        """`env`: added to the environment; None takes a variable away."""
        self._command = [sys.executable, "-m", "headrace_engine.main", "serve", path, "--port", "0", *arguments]
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        thrifty = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        wanted: dict[str, str | None] = {**os.environ, **thrifty, **(env or {})}
        self._env = {name: value for name, value in wanted.items() if value is not None}
        self._process: asyncio.subprocess.Process | None = None
        self._serving: asyncio.Future[int] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.lines: deque[dict[str, Any]] = deque(maxlen=1000)  # of its log; those that are not JSON have only `text`
        self.port = 0

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the API process."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    async def spawn(self) -> Self:
        """Starts it without waiting until it serves."""
        self._serving = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._env, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def start(self) -> Self:
        """Starts it and waits until it serves. Raises RuntimeError with its log if it ends instead."""
        await self.spawn()
        if self._serving is None:
            raise RuntimeError("not started")
        self.port = await asyncio.wait_for(self._serving, START_S)
        return self

    def core_pid(self) -> int:
        """Process id of its core: the child that runs the model."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:  # noqa: PTH123  a file of the kernel
            children = [int(word) for word in file.read().split()]
        for child in children:
            with open(f"/proc/{child}/cmdline", "rb") as file:  # noqa: PTH123
                if b"spawn_main" in file.read():
                    return child
        raise RuntimeError("the engine has no core")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the API process alone."""
        os.kill(self.pid, number)

    async def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutError."""
        if self._process is None:
            raise RuntimeError("not started")
        code = await asyncio.wait_for(self._process.wait(), timeout_s)
        if self._reading is not None:
            await self._reading
        return code

    async def stop(self) -> None:
        """Ends it in order, or by force after ten seconds."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self.signal(signal.SIGTERM)
        try:
            await self.wait(10)
        except TimeoutError:
            self._process.kill()
            await self.wait(10)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.stop()
            raise

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _read(self) -> None:
        if self._process is None or self._process.stderr is None or self._serving is None:
            raise RuntimeError("not started")
        async for raw in self._process.stderr:
            text = raw.decode(errors="replace").rstrip()
            try:
                line = json.loads(text)
            except ValueError:
                line = {"text": text}
            self.lines.append(line if isinstance(line, dict) else {"text": text})
            if self.lines[-1].get("message") == "serving" and not self._serving.done():
                self._serving.set_result(int(self.lines[-1]["port"]))
        if not self._serving.done() and not self._serving.cancelled():
            self._serving.add_done_callback(lambda ended: ended.exception())  # seen, also where nobody waits
            self._serving.set_exception(RuntimeError(f"the engine ended before it served: {list(self.lines)[-20:]}"))
