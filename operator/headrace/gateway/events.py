"""Server-sent events of engines: bytes -> events -> what each means for the relay. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

MAX_EVENT = 4 * 1024 * 1024  # bytes of one event
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"

_NEWLINE = rb"(?:\r\n|\n|\r(?!\n))"
_BOUNDARY = re.compile(_NEWLINE + _NEWLINE)
_LINE = re.compile(_NEWLINE)


class EventTooLarge(ValueError):
    """An event has more than MAX_EVENT bytes."""


@dataclass(frozen=True)
class Event:
    """One event: the bytes as they came, its end included, and its data (None: only comments or other fields)."""

    raw: bytes
    data: bytes | None


class Splitter:
    """Cuts a byte stream into events at empty lines, whichever way lines end; keeps the rest for the next call."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises EventTooLarge."""
        buffer = self._rest + data if self._rest else data
        events: list[Event] = []
        start = 0
        if b"\r" in buffer:
            for boundary in _BOUNDARY.finditer(buffer):
                events.append(_event(buffer[start : boundary.end()]))
                start = boundary.end()
        else:
            while (end := buffer.find(b"\n\n", start)) >= 0:
                events.append(_event(buffer[start : end + 2]))
                start = end + 2
        self._rest = buffer[start:]
        if len(self._rest) > MAX_EVENT:
            raise EventTooLarge(f"an event has more than {MAX_EVENT} bytes")
        return events

    def finish(self) -> list[Event]:
        """At the stream's end: what had no empty line after it."""
        rest, self._rest = self._rest, b""
        return [_event(rest + b"\n\n")] if rest.strip() else []


def _event(raw: bytes) -> Event:
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Event(raw, raw[6:-2])
    lines: list[bytes] = []
    for line in _LINE.split(raw):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return Event(raw, b"\n".join(lines) if lines else None)


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """`usage` of an answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return 0 if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class ErrorObject(msgspec.Struct):
    """`error` of an error event or body."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | None = None


class Delta(msgspec.Struct):
    """`delta` of a chat choice."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk, chat or plain."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        """Text, reasoning or a tool call stands in it."""
        if self.text:
            return True
        delta = self.delta
        return delta is not None and bool(delta.content or delta.reasoning_content or delta.tool_calls)


class Chunk(msgspec.Struct):
    """One chunk of a streamed answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorObject | None = None


class Kind(Enum):
    """What an event is."""

    COMMENT = auto()
    CONTENT = auto()
    OTHER = auto()  # a role, a finish reason, an empty delta
    USAGE = auto()  # only usage: the client sees it if it asked
    ERROR = auto()
    DONE = auto()
    MALFORMED = auto()


@dataclass(frozen=True)
class Reading:
    """An event understood."""

    kind: Kind
    chunk: Chunk | None = None


_DECODER = msgspec.json.Decoder(Chunk)
_COMMENT = Reading(Kind.COMMENT)
_DONE = Reading(Kind.DONE)
_MALFORMED = Reading(Kind.MALFORMED)


def read_event(event: Event) -> Reading:
    """What an event means; never raises."""
    if event.data is None:
        return _COMMENT
    if event.data.strip() == b"[DONE]":
        return _DONE
    try:
        chunk = _DECODER.decode(event.data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _MALFORMED
    if chunk.error is not None:
        return Reading(Kind.ERROR, chunk)
    if not chunk.choices:
        return Reading(Kind.USAGE if chunk.usage is not None else Kind.OTHER, chunk)
    return Reading(Kind.CONTENT if any(c.has_content for c in chunk.choices) else Kind.OTHER, chunk)
