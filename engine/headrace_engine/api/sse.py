"""Shapes of OpenAI responses, whole and as server-sent events. The constant parts of a chunk are encoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_engine.api.logprobs import Entry, Shapes, TokenText
from headrace_wire.protocol import Finish
from headrace_wire.reasons import RequestError

DONE = b"data: [DONE]\n\n"
HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))

_encode = msgspec.json.encode


def _no_text(token: int) -> bytes:
    return b""


@dataclass(frozen=True)
class Usage:
    """Tokens of a response, over all its choices."""

    prompt: int
    completion: int
    cached: int  # prompt tokens served from the prefix cache

    def shape(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True)
class Choice:
    """One finished choice."""

    text: str
    finish: Finish
    entries: list[Entry] | None = None  # None: no logprobs were asked for
    stop: str | int | None = None  # the stop string, or the id of `stop_token_ids`, that ended it


def error_event(error: RequestError) -> bytes:
    """The event that ends a stream which failed after its head was sent."""
    return b"data: " + _encode(error.body()) + b"\n\n"


class Response:
    """One response: its id, model and time are the same in every chunk."""

    def __init__(self, identity: str, model: str, created: int, *, chat: bool, token_text: TokenText = _no_text):
        self._chat = chat
        self._logprobs = Shapes(token_text, chat=chat)
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{identity}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._chunk_base = {**self._base, "object": "chat.completion.chunk"} if chat else self._base
        opening = _encode(self._chunk_base)[:-1]
        self._opening = b"data: " + opening + b',"choices":[{"index":'
        self._before = b',"delta":{"content":' if chat else b',"text":'
        self._after = b'},"logprobs":null,"finish_reason":null}]}\n\n' if chat else self._closing(None)

    def first(self, index: int, echo: str = "", entries: list[Entry] | None = None) -> bytes:
        """The chunk that opens a choice: of a chat with its role, of a completion with its prompt if that is asked."""
        if not self._chat:
            return self.text(index, echo, entries)
        return self._opening + b'%d,"delta":{"role":"assistant","content":""}' % index + self._closing(None)

    def text(self, index: int, piece: str, entries: list[Entry] | None = None) -> bytes:
        """New text of a choice with the entries of its tokens; nothing for nothing new."""
        if entries:
            after = (b'},"logprobs":' if self._chat else b',"logprobs":') + _encode(self._logprobs.of(entries))
            after += b',"finish_reason":null}]}\n\n'
        elif piece:
            after = self._after
        else:
            return b""
        return self._opening + b"%d" % index + self._before + _encode(piece) + after

    def last(self, index: int, finish: Finish, stop: str | int | None = None) -> bytes:
        """The chunk that ends a choice; `stop`: the string or id that ended it."""
        empty = b'%d,"delta":{}' if self._chat else b'%d,"text":""'
        return self._opening + empty % index + self._closing(finish, b',"stop_reason":' + _encode(stop))

    def with_usage(self, chunk: bytes, usage: Usage) -> bytes:
        """A chunk that also says the usage so far; nothing for nothing."""
        return chunk[: -len(b"}\n\n")] + b',"usage":' + _encode(usage.shape()) + b"}\n\n" if chunk else b""

    def usage(self, usage: Usage) -> bytes:
        """The chunk with the usage: no choices, the last before DONE."""
        return b"data: " + _encode({**self._chunk_base, "choices": [], "usage": usage.shape()}) + b"\n\n"

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """The response that is not streamed."""
        rows = []
        for index, choice in enumerate(choices):
            text = {"message": {"role": "assistant", "content": choice.text}} if self._chat else {"text": choice.text}
            logprobs = self._logprobs.of(choice.entries)
            end = {"finish_reason": choice.finish.value, "stop_reason": choice.stop}
            rows.append({"index": index, **text, "logprobs": logprobs, **end})
        return _encode({**self._base, "choices": rows, "usage": usage.shape()})

    def _closing(self, finish: Finish | None, more: bytes = b"") -> bytes:
        return b',"logprobs":null,"finish_reason":' + _encode(finish) + more + b"}]}\n\n"
