"""Shapes of the OpenAI responses that a FakeEngine gives."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_wire.protocol import Finish


@dataclass
class Choice:
    """One choice of a response while it is generated."""

    index: int
    text: str = ""
    tokens: int = 0
    finish: Finish | None = None


class Answer:
    """Shapes of the OpenAI responses of one request."""

    def __init__(self, model: str, identity: str, *, chat: bool, prompt: int):
        self._chat = chat
        self._prompt = prompt
        kind = "chat.completion" if chat else "text_completion"
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{identity}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def first(self, choice: Choice) -> bytes:
        """The chunk that opens a chat choice; completions have none."""
        return self._event(choice, {"role": "assistant", "content": ""}, None) if self._chat else b""

    def chunk(self, choice: Choice, piece: str) -> bytes:
        """New text."""
        return self._event(choice, {"content": piece}, None)

    def last(self, choice: Choice) -> bytes:
        """The chunk with the finish reason."""
        return self._event(choice, {}, choice.finish)

    def usage_chunk(self, choices: Iterable[Choice], cached: int) -> bytes:
        """The chunk with the usage and no choices."""
        value = {**self._chunk_base, "choices": [], "usage": self._usage(choices, cached)}
        return b"data: " + msgspec.json.encode(value) + b"\n\n"

    def whole(self, choices: Iterable[Choice], cached: int) -> dict[str, Any]:
        """The response that is not streamed."""
        rows, choices = [], list(choices)
        for choice in choices:
            text = {"message": {"role": "assistant", "content": choice.text}} if self._chat else {"text": choice.text}
            finish = None if choice.finish is None else choice.finish.value
            rows.append({"index": choice.index, **text, "logprobs": None, "finish_reason": finish})
        return {**self._base, "choices": rows, "usage": self._usage(choices, cached)}

    @property
    def _chunk_base(self) -> dict[str, Any]:
        return {**self._base, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _event(self, choice: Choice, delta: dict[str, str], finish: Finish | None) -> bytes:
        text: dict[str, Any] = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        row = {
            "index": choice.index,
            **text,
            "logprobs": None,
            "finish_reason": None if finish is None else finish.value,
        }
        return b"data: " + msgspec.json.encode({**self._chunk_base, "choices": [row]}) + b"\n\n"

    def _usage(self, choices: Iterable[Choice], cached: int) -> dict[str, Any]:
        output = sum(choice.tokens for choice in choices)
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": output,
            "total_tokens": self._prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
