"""Server-sent events of engines: bytes -> events -> what each means for the relay. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

MAX_EVENT = 4 * 1024 * 1024  # bytes of one event
END = b"\n\n"
KEEP_ALIVE = b": waiting\n\n"

_NEWLINE = rb"(?:\r\n|\n|\r(?!\n))"
_BOUNDARY = re.compile(_NEWLINE + _NEWLINE)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character, as JSON may spell it
_LINE = re.compile(_NEWLINE)


class EventTooLarge(ValueError):
    """An event has more than MAX_EVENT bytes."""


class Splitter:
    """Cuts a byte stream into events at empty lines, whichever way lines end; keeps the rest for the next call.

    An event is its lines without the empty line at its end; events joined by END, with one behind, are a stream again.
    """

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> bool:
        """A part of an event is kept."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes. Raises EventTooLarge."""
        buffer = self._rest + data if self._rest else data
        events = _BOUNDARY.split(buffer) if b"\r" in buffer else buffer.split(END)
        self._rest = rest = events.pop()
        if len(rest) > MAX_EVENT:
            raise EventTooLarge(f"an event has more than {MAX_EVENT} bytes")
        return events

    def finish(self) -> list[bytes]:
        """At the stream's end: what had no empty line after it."""
        rest, self._rest = self._rest, b""
        return [rest] if rest.strip() else []


def data_of(event: bytes) -> bytes | None:
    """The data lines of an event, joined; None if it has only comments or other fields."""
    if event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event:
        return event[6:]
    lines: list[bytes] = []
    for line in _LINE.split(event):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return b"\n".join(lines) if lines else None


class PromptDetails(msgspec.Struct, gc=False):
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

    def shape(self) -> dict[str, Any]:
        """OpenAI's `usage`: what was understood of it, and a total that is the sum."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class ErrorObject(msgspec.Struct):
    """`error` of an error event or body."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | None = None


class Delta(msgspec.Struct, gc=False):
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


class Reading(NamedTuple):
    """An event understood; a piece of content that ends nothing comes without its chunk."""

    kind: Kind
    chunk: Chunk | None = None


_DECODER = msgspec.json.Decoder(Chunk)
_COMMENT = Reading(Kind.COMMENT)
_DONE = Reading(Kind.DONE)
_MALFORMED = Reading(Kind.MALFORMED)
_CONTENT = Reading(Kind.CONTENT)


def read_event(data: bytes | None) -> Reading:
    """What an event with this data means; never raises."""
    if data is None:
        return _COMMENT
    if data.startswith(b"{") and data.endswith(b"}") and _are_pieces(data, 1):
        return _CONTENT
    if data.strip() == b"[DONE]":
        return _DONE
    try:
        chunk = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _MALFORMED
    if not is_text(data):
        return _MALFORMED
    if chunk.error is not None:
        return Reading(Kind.ERROR, chunk)
    for choice in chunk.choices:
        delta = choice.delta
        if choice.text or (delta is not None and (delta.content or delta.reasoning_content or delta.tool_calls)):
            return Reading(Kind.CONTENT, chunk)
    if chunk.usage is not None and not chunk.choices:
        return Reading(Kind.USAGE, chunk)
    return Reading(Kind.OTHER, chunk)


def with_usage(data: bytes, usage: dict[str, Any] | None, *, alone: bool = False) -> bytes:
    """The event of the chunk `data` with this usage; `alone`: without its choices. Raises msgspec.DecodeError."""
    chunk = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    if alone:
        chunk["choices"] = msgspec.Raw(b"[]")
    chunk["usage"] = msgspec.Raw(msgspec.json.encode(usage))
    return b"data: " + msgspec.json.encode(chunk)


def is_text(data: bytes) -> bool:
    """These bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Spelling(NamedTuple):
    """Byte patterns of one way to write JSON. They match only as keys: inside a string a quote has a backslash."""

    content: bytes  # of a chat's chunk, with text or without
    no_content: bytes
    text: bytes  # of a plain chunk
    no_text: bytes
    running: bytes  # no finish reason
    first: bytes  # the first choice, the only one of most answers
    ends: tuple[bytes, ...]  # what needs a closer look


_COMPACT = _Spelling(
    b'"content":"',
    b'"content":""',
    b'"text":"',
    b'"text":""',
    b'"finish_reason":null',
    b'"index":0,',
    (b'"finish_reason":"', b'"usage":{', b'"error":'),
)
_SPACED = _Spelling(
    b'"content": "',
    b'"content": ""',
    b'"text": "',
    b'"text": ""',
    b'"finish_reason": null',
    b'"index": 0,',
    (b'"finish_reason": "', b'"usage": {', b'"error": '),
)


def plain_events(stream: bytes) -> int:
    """How many events these bytes are, if they are whole events that are all pieces of content; 0 = look closer.

    Most reads are such, and are told without cutting or decoding them.
    """
    if not stream.startswith(b"data: {") or not stream.endswith(b"}\n\n"):
        return 0
    events = stream.count(b"}\n\n")
    lines = stream.count(b"\n")
    if lines != 2 * events or (events > 1 and stream.count(b"}\n\ndata: {") != events - 1):
        return 0
    return events if _are_pieces(stream, events) else 0


def leading_pieces(stream: bytes) -> tuple[int, int]:
    """(events, bytes) of the whole events at the start that are pieces of content, as far as one look tells."""
    if events := plain_events(stream):
        return events, len(stream)
    end = min((at for p in (_COMPACT.ends[0], _SPACED.ends[0]) if (at := stream.find(p)) >= 0), default=len(stream))
    cut = stream.rfind(END, 0, end) + len(END)
    return (events, cut) if cut > len(END) and (events := plain_events(stream[:cut])) else (0, 0)


def _are_pieces(data: bytes, events: int) -> bool:
    """So many chunks with text of the first choice, without finish reason, usage or error; told without decoding."""
    spelling = _COMPACT if _COMPACT.running in data else _SPACED
    for pattern in spelling.ends:
        if pattern in data:
            return False
    if data.count(spelling.running) != events or data.count(spelling.first) != events:
        return False
    if spelling.no_content in data or spelling.no_text in data or not is_text(data):
        return False
    if b"\\u" in data and _SURROGATE.search(data):
        return False
    return data.count(spelling.content) == events or data.count(spelling.text) == events
