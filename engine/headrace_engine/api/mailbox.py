"""What the core sent for one request and its client has not taken yet: bounded in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_wire.protocol import Delta
from headrace_wire.reasons import Reason, RequestError

_DELTA_BYTES = 256  # of one delta beside its tokens
_TOKEN_BYTES = 8
_LOGPROB_BYTES = 64  # of one logprob with its token
_CHOICE_BYTES = 16 << 10  # that may wait for each choice, where there are many

MESSAGES = {
    Reason.DEADLINE_EXCEEDED: "the request's time ran out before its answer was complete",
    Reason.OUT_OF_MEMORY: "the engine ran out of memory on this request",
    Reason.DRAINING: "the engine is shutting down",
    Reason.SLOW_READER: "the client read its stream too slowly",
    Reason.CANCELLED: "the request was cancelled",
    Reason.ENGINE_FAILED: "the engine's core ended unexpectedly",
}


def failure(reason: Reason) -> RequestError:
    """The error that a reason becomes for the caller."""
    retry_after = 1.0 if reason.retryable else None
    return RequestError(reason, MESSAGES.get(reason, f"the request ended: {reason.value}"), retry_after=retry_after)


class Mailbox:
    """Deltas of one request, over its choices, in the order of arrival.

    `overflow` is called once when more than `bound` bytes wait, or 16 KiB a choice if that is more. Logprobs of the
    prompt do not count: they come once, and the prompt bounds them.
    """

    def __init__(self, ids: list[str], bound: int, overflow: Callable[[], object], opened: float):
        self.ids = ids  # one a choice
        self.unfinished = set(ids)  # choices whose terminal delta has not come
        self.opened = opened  # time of the Submit, s
        self.first: float | None = None  # arrival of the first token, s
        self.latest: float | None = None  # arrival of the latest token, s
        self.overflowed = False
        self.closed = False  # nobody reads it any more
        self._index = {identity: index for index, identity in enumerate(ids)}
        self._bound = max(bound, _CHOICE_BYTES * len(ids)) if len(ids) > 1 else bound
        self._overflow = overflow
        self._dismissed: set[str] = set()
        self._waiting: list[tuple[int, Delta]] = []
        self._bytes = 0
        self._error: RequestError | None = None
        self._wake = asyncio.Event()

    def put(self, delta: Delta) -> None:
        """A delta from the core."""
        if delta.finish is not None or delta.error is not None:
            self.unfinished.discard(delta.id)
        if self.closed or self.overflowed or delta.id in self._dismissed:
            return
        if delta.error is not None:
            self.fail(failure(delta.error))
            return
        self._waiting.append((self._index[delta.id], delta))
        self._bytes += _DELTA_BYTES + _TOKEN_BYTES * len(delta.tokens)
        self._bytes += _LOGPROB_BYTES * sum(1 + len(entry.top) for entry in delta.logprobs)
        self._wake.set()
        if self._bytes > self._bound:
            self.overflowed = True
            self._waiting.clear()
            self._overflow()

    def close(self) -> None:
        """Its reader is gone: what still comes is only counted."""
        self.closed = True
        self._waiting.clear()

    def dismiss(self, identity: str) -> None:
        """This choice is complete: what the core still sends for it is dropped."""
        self._dismissed.add(identity)

    def fail(self, error: RequestError) -> None:
        """Ends the request: raised by `get` after what already waits."""
        self._error = self._error or error
        self._wake.set()

    async def get(self) -> list[tuple[int, Delta]]:
        """What waits, at least one (choice, delta). Raises RequestError when the request failed."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken
