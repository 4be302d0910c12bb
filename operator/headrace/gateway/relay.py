"""Relays one engine's answer: bytes with back-pressure, each event understood on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from prometheus_client import Histogram

from headrace.gateway.answer import Assembler
from headrace.gateway.client import Downstream
from headrace.gateway.events import Chunk, ErrorObject, Event, EventTooLarge, Kind, Reading, Splitter, Usage, read_event
from headrace.gateway.ledger import Times
from headrace.gateway.upstream import Connection, Failure, UpstreamError
from headrace_wire.reasons import Reason, RequestError


class EngineRefused(Exception):
    """The engine answered with an error, before or after its 200."""

    def __init__(self, error: RequestError):
        super().__init__(error.message)
        self.error = error


def refused(error: ErrorObject, status: int = 502) -> EngineRefused:
    """The engine's error object as an error of ours; codes that are not ours become ENGINE_FAILED."""
    try:
        reason = Reason(error.code)
    except ValueError:
        reason = Reason.INVALID_REQUEST if status == 400 else Reason.ENGINE_FAILED
    if reason in (Reason.UNAUTHORIZED, Reason.MODEL_NOT_FOUND, Reason.NOT_FOUND, Reason.METHOD_NOT_ALLOWED):
        reason = Reason.ENGINE_FAILED  # between us and the engine, not between the client and us
    return EngineRefused(RequestError(reason, error.message or "the engine refused the request", param=error.param))


@dataclass(frozen=True)
class Wish:
    """How the client wants its answer."""

    chat: bool
    streams: bool
    usage: bool  # sees the usage chunk
    choices: int
    max_answer: int  # bytes


@dataclass
class Progress:
    """What has come of an answer."""

    times: Times
    events: int = 0  # with content
    usage: Usage | None = None
    finished: set[int] = field(default_factory=set)  # choices with a finish reason
    done: bool = False

    def restart(self) -> None:
        """Forget what has come: another engine begins anew."""
        self.events, self.usage, self.done = 0, None, False
        self.finished.clear()
        self.times.first = self.times.last = None

    @property
    def output_tokens(self) -> int:
        """Tokens made so far; as many as content events until the engine says."""
        return self.events if self.usage is None else max(self.usage.completion_tokens, 0)


class Relay:
    """One answer on its way from an engine to the client. Time is a function's, in monotonic seconds."""

    def __init__(self, wish: Wish, down: Downstream, progress: Progress, itl: Histogram, clock: Callable[[], float]):
        self._wish = wish
        self._progress = progress
        self._down = down
        self._itl = itl
        self._clock = clock
        self._joined = Assembler(wish.chat)
        self._sent = False
        self._failure: UpstreamError | EngineRefused | None = None  # found behind events that are still to be sent

    @property
    def sent(self) -> bool:
        """A part of the answer has gone to the client: no other engine can take over."""
        return self._sent

    def restart(self) -> None:
        """Another engine begins anew; nothing had gone to the client."""
        self._progress.restart()
        self._joined = Assembler(self._wish.chat)
        self._failure = None

    async def run(self, connection: Connection, first_s: float, idle_s: float, seen: Callable[[int], None]) -> None:
        """Relay until [DONE]; `seen` is told how many events with content have come.

        Raises UpstreamError if the answer breaks off, EngineRefused for an error event, ClientGone by cancellation.
        """
        splitter = Splitter()
        wait_s = first_s
        data = b"?"
        while data:
            data = await connection.read(wait_s)
            wait_s = idle_s
            before = self._progress.events
            try:
                pieces = self._take(splitter.feed(data) if data else splitter.finish())
            except EventTooLarge as error:
                raise UpstreamError(Failure.TOO_LARGE, str(error), untouched=False) from error
            if self._progress.events > before:
                seen(self._progress.events)
            if self._progress.done:
                await self._finish(b"".join(pieces))
                return
            if pieces and (self._sent or self._failure is None):
                self._sent = True
                await self._down.write(b"".join(pieces))
            if self._failure is not None:
                raise self._failure
        raise UpstreamError(Failure.BROKEN, "the engine's answer ended before it was complete", untouched=False)

    def _take(self, events: list[Event]) -> list[bytes]:
        """What of these events the client gets now."""
        now = self._clock()
        pieces: list[bytes] = []
        for event in events:
            reading = read_event(event)
            if reading.kind is Kind.DONE:
                self._progress.done = True
                pieces.append(event.raw)
                break
            self._failure = _failure(reading)
            if self._failure is not None:
                break
            if reading.chunk is not None:
                self._note(reading.chunk, reading.kind, now)
                self._join(event)
            if reading.kind is not Kind.USAGE or self._wish.usage:
                pieces.append(event.raw)
        return pieces if self._wish.streams else []

    def _note(self, chunk: Chunk, kind: Kind, now: float) -> None:
        progress = self._progress
        if chunk.usage is not None:
            progress.usage = chunk.usage
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                progress.finished.add(choice.index)
        if kind is not Kind.CONTENT:
            return
        progress.events += 1
        times = progress.times
        if times.first is None:
            times.first = now
        elif times.last is not None:
            self._itl.observe(now - times.last)
        times.last = now

    def _join(self, event: Event) -> None:
        if self._wish.streams or event.data is None:
            return
        try:
            self._joined.take(event.data)
        except (msgspec.MsgspecError, AttributeError, TypeError) as error:
            raise UpstreamError(Failure.BROKEN, "the engine sent a malformed chunk", untouched=False) from error
        if self._joined.size > self._wish.max_answer:
            raise UpstreamError(
                Failure.TOO_LARGE, f"the answer has more than {self._wish.max_answer} bytes", untouched=False
            )

    async def _finish(self, rest: bytes) -> None:
        if len(self._progress.finished) < self._wish.choices:
            raise UpstreamError(Failure.BROKEN, "the engine ended an answer that was not complete", untouched=False)
        self._sent = True
        if self._wish.streams:
            await self._down.finish(rest)
        else:
            await self._down.answer(200, self._joined.body())


def _failure(reading: Reading) -> UpstreamError | EngineRefused | None:
    """The end that an event brings to an answer, if it does."""
    if reading.kind is Kind.ERROR and reading.chunk is not None and reading.chunk.error is not None:
        return refused(reading.chunk.error)
    if reading.kind is Kind.MALFORMED:
        return UpstreamError(Failure.BROKEN, "the engine sent an event that is not JSON", untouched=False)
    return None
