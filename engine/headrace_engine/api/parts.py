"""What the routes work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from headrace_engine.api.client import CoreLink
from headrace_engine.api.defaults import NO_DEFAULTS, Defaults
from headrace_engine.api.drain import Drain
from headrace_engine.api.mailbox import failure
from headrace_engine.api.metrics import Metrics
from headrace_engine.api.submit import Limits
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.reasons import Reason, RequestError

LONG_BYTES = 64 << 10  # bodies above are read and tokenized apart, so that short ones do not queue behind them
LOADING_RETRY_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class Threads:
    """Where tokenizing runs: never on the event loop."""

    short: Executor
    long: Executor

    async def run(self, work: Callable[[], T], *, size: int) -> T:
        """The result of `work` on a body of `size` bytes."""
        executor = self.long if size > LONG_BYTES else self.short
        return await asyncio.get_running_loop().run_in_executor(executor, work)


@dataclass
class Parts:
    """Built once, by the server."""

    link: CoreLink
    tokenizer: ChatTokenizer
    metrics: Metrics
    drain: Drain
    threads: Threads
    served_name: str
    defaults: Defaults = NO_DEFAULTS  # of sampling

    def limits(self) -> Limits:
        """What a request must fit in. Raises RequestError where no request can be taken now."""
        if self.drain.begun.is_set():
            raise failure(Reason.DRAINING)
        if self.link.died.is_set():
            raise failure(Reason.ENGINE_FAILED)
        ready = self.link.ready
        if ready is None:
            raise RequestError(Reason.NO_CAPACITY, "the model is still being loaded", retry_after=LOADING_RETRY_S)
        return Limits(ready.model.max_tokens, ready.total_pages * PAGE_TOKENS, ready.shape.vocab)

    def check_model(self, model: str) -> None:
        """Raises RequestError for another model's name."""
        if model != self.served_name:
            message = f"model: there is no {model[:100]!r} here; this engine serves {self.served_name!r}"
            raise RequestError(Reason.MODEL_NOT_FOUND, message, param="model")
