"""An event loop on which waiting takes no time: deadlines are tested at the bound itself."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its clock leaps to the next timer when nothing else is to be done.

    Nothing outside may be waited for: what a thread or another process does takes no time of this clock.
    `with asyncio.Runner(loop_factory=LeapingLoop) as runner: runner.run(...)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def leap(timeout: float | None = None) -> Any:
            found = select(0)
            if not found and timeout:
                self._now += timeout
            return found

        selector.select = leap

    def time(self) -> float:
        """Seconds since it was made."""
        return self._now


class Inline(Executor):
    """Runs what it is given at once, in the thread that gives it."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  whoever waits for the future gets it
            future.set_exception(error)
        return future
