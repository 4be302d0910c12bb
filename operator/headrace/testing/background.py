"""An event loop in a thread, so that plain tests can use servers that live on one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """`with Background() as background: engine = background.enter(FakeEngine())`; what was entered is left."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background", daemon=True)
        self._stack = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 180.0) -> T:
        """The result of a coroutine that runs on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters an async context manager on the loop."""
        return self.run(self._stack.enter_async_context(context))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()
