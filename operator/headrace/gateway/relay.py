"""Relays one engine's answer: bytes with back-pressure, each event understood on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace.gateway.answer import Assembler
from headrace.gateway.client import Downstream
from headrace.gateway.events import (
    END,
    Chunk,
    ErrorObject,
    EventTooLarge,
    Kind,
    Reading,
    Splitter,
    Usage,
    data_of,
    is_text,
    leading_pieces,
    read_event,
    with_usage,
)
from headrace.gateway.histogram import Buckets
from headrace.gateway.ledger import Times
from headrace.gateway.upstream import Connection, Failure, UpstreamError
from headrace_wire.reasons import Reason, RequestError

ENGINES_SAY = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.CONTEXT_EXCEEDED,
        Reason.BODY_TOO_LARGE,
        Reason.QUEUE_FULL,
        Reason.DEADLINE_EXCEEDED,
        Reason.NO_CAPACITY,
        Reason.DRAINING,
        Reason.ENGINE_FAILED,
        Reason.ENGINE_TIMEOUT,
        Reason.OUT_OF_MEMORY,
        Reason.INTERNAL,
    }
)  # the reasons of an engine that concern the client


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
    if reason not in ENGINES_SAY:
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
    believes: Callable[[Usage], bool]  # this usage can be, for this request
    prompt_tokens: Callable[[], int]  # as we count them
    events: int = 0  # with content
    usage: Usage | None = None
    finished: set[int] = field(default_factory=set)  # choices with a finish reason
    done: bool = False

    def note(self, chunk: Chunk) -> None:
        """Take usage and finish reasons. A usage that cannot be is as good as none."""
        if chunk.usage is not None and self.believes(chunk.usage):
            self.usage = chunk.usage
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self.finished.add(choice.index)

    def restart(self) -> None:
        """Forget what has come: another engine begins anew."""
        self.events, self.usage, self.done = 0, None, False
        self.finished.clear()
        self.times.first = self.times.last = None

    @property
    def charged(self) -> Usage:
        """What the request is charged for, and its client is told: the engine's count, ours where it gave none."""
        return Usage(self.prompt_tokens(), self.events) if self.usage is None else self.usage

    @property
    def output_tokens(self) -> int:
        """Tokens made so far; as many as content events until the engine says."""
        return self.charged.completion_tokens


class Relay:
    """One answer on its way from an engine to the client. Time is a function's, in monotonic seconds."""

    def __init__(self, wish: Wish, down: Downstream, progress: Progress, itl: Buckets, clock: Callable[[], float]):
        self._wish = wish
        self._progress = progress
        self._down = down
        self._itl = itl
        self._clock = clock
        self._joined = Assembler(wish.chat)
        self._sent = False
        self._told_usage = False  # the usage chunk is among what the client gets
        self._ending = b""  # the last chunk that ended a choice
        self._failure: UpstreamError | EngineRefused | None = None  # found behind events that are still to be sent

    @property
    def sent(self) -> bool:
        """A part of the answer has gone to the client: no other engine can take over."""
        return self._sent

    def restart(self) -> None:
        """Another engine begins anew; nothing had gone to the client."""
        self._progress.restart()
        self._joined = Assembler(self._wish.chat)
        self._failure, self._told_usage, self._ending = None, False, b""

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
            shown = self._read(splitter, data)
            if self._progress.events > before:
                seen(self._progress.events)
            if self._progress.done:
                await self._finish(shown)
                return
            if shown:
                self._sent = True
                await self._down.write(shown)
            if self._failure is not None:
                raise self._failure
        raise _broken("the engine's answer ended before it was complete")

    def _read(self, splitter: Splitter, data: bytes) -> bytes:
        """What of these bytes (b"" at the end) goes to the client. Raises UpstreamError for what cannot be read."""
        pieces = at = 0
        if self._wish.streams and not splitter.pending:
            pieces, at = leading_pieces(data)
            if pieces:
                self._time(pieces)
                if at == len(data):
                    return data
        try:
            events = self._take(splitter.feed(data[at:]) if data else splitter.finish())
        except EventTooLarge as error:
            raise UpstreamError(Failure.TOO_LARGE, str(error), untouched=False) from error
        if not self._sent and self._failure is not None and not self._progress.done:
            return b""  # another engine can still take over
        return data[:at] + _stream(events)

    def _take(self, events: list[bytes]) -> list[bytes]:
        """What of these events the client gets now; sets `done` or `_failure` where they end the answer."""
        progress, shown, content = self._progress, [], 0
        for event in events:
            data = data_of(event)
            reading = read_event(data)
            kind, chunk = reading
            if kind is Kind.DONE:
                progress.done = True
                shown += [*self._usage_left_out(), event]
                break
            if kind is Kind.ERROR or kind is Kind.MALFORMED:
                self._failure = _failure(reading)
                break
            if chunk is not None and not all(0 <= choice.index < self._wish.choices for choice in chunk.choices):
                self._failure = _broken("the engine answered for a choice that nobody asked for")
                break
            content += kind is Kind.CONTENT
            if chunk is not None and data is not None:
                progress.note(chunk)
                event = self._corrected(event, data, chunk)
            if data is not None and not self._wish.streams:
                self._join(data)
            if kind is Kind.COMMENT:
                if not (self._sent and event.startswith(b":") and is_text(event)):
                    continue  # before the first event it would commit us to this engine
            elif kind is Kind.USAGE and not self._wish.usage:
                continue
            shown.append(event)
        if content:
            self._time(content)
        return shown if self._wish.streams else []

    def _corrected(self, event: bytes, data: bytes, chunk: Chunk) -> bytes:
        """The event with a usage that is what the client is charged for, whatever the engine wrote."""
        if any(choice.finish_reason is not None for choice in chunk.choices):
            self._ending = data
        wanted = self._wish.usage or chunk.choices
        if chunk.usage is None or not (self._wish.streams and wanted):
            return event
        self._told_usage |= not chunk.choices
        so_far = chunk.usage if self._progress.believes(chunk.usage) else None
        usage = so_far if chunk.choices else self._progress.charged
        try:
            return with_usage(data, None if usage is None else usage.shape())
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _broken("the engine sent a malformed chunk") from error

    def _usage_left_out(self) -> list[bytes]:
        """The usage chunk that the client asked for, where the engine sent none."""
        if not self._wish.usage or self._told_usage or not self._ending:
            return []
        return [with_usage(self._ending, self._progress.charged.shape(), alone=True)]

    def _time(self, content: int) -> None:
        """So many events with content have come at once."""
        now, times = self._clock(), self._progress.times
        self._progress.events += content
        if times.first is None or times.last is None:
            times.first = now
        else:
            self._itl.observe(now - times.last)
        times.last = now
        if content > 1:
            self._itl.observe(0.0, content - 1)

    def _join(self, data: bytes) -> None:
        try:
            self._joined.take(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError, TypeError) as error:
            raise _broken("the engine sent a malformed chunk") from error
        if self._joined.size > self._wish.max_answer:
            raise UpstreamError(
                Failure.TOO_LARGE, f"the answer has more than {self._wish.max_answer} bytes", untouched=False
            )

    async def _finish(self, rest: bytes) -> None:
        if len(self._progress.finished) < self._wish.choices:
            raise _broken("the engine ended an answer that was not complete")
        self._sent = True
        if self._wish.streams:
            await self._down.finish(rest)
        else:
            await self._down.answer(200, self._joined.body(self._progress.charged.shape()))


def _stream(events: list[bytes]) -> bytes:
    """The events as they go over the wire."""
    return END.join([*events, b""]) if events else b""


def _failure(reading: Reading) -> UpstreamError | EngineRefused | None:
    """The end that an event brings to an answer, if it does."""
    if reading.kind is Kind.ERROR and reading.chunk is not None and reading.chunk.error is not None:
        return refused(reading.chunk.error)
    if reading.kind is Kind.MALFORMED:
        return _broken("the engine sent an event that is no piece of an answer")
    return None


def _broken(why: str) -> UpstreamError:
    return UpstreamError(Failure.BROKEN, why, untouched=False)
