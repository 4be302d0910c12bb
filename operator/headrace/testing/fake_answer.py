"""Shapes of the OpenAI responses that a FakeEngine gives."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Finish

SURE, OTHERS = 0.0, -9999.0  # logprobs: nothing was drawn


@dataclass
class Choice:
    """One choice of a response while it is generated."""

    index: int
    text: str = ""
    tokens: int = 0  # of usage, a stop included
    shown: list[int] = field(default_factory=list)  # whose text is given out
    finish: Finish | None = None
    stop: str | int | None = None  # the stop string, or the id of `stop_token_ids`, that ended it


@dataclass(frozen=True)
class Told:
    """What a request wants to be told beside the text."""

    top: int | None = None  # likeliest tokens reported with each token; None: no logprobs
    usage_everywhere: bool = False


@dataclass(frozen=True)
class Asked:
    """The prompts of a request: tokens of all, and the text that each of its choices begins with."""

    tokens: int
    echoes: list[str]


class Answer:
    """Shapes of the OpenAI responses of one request."""

    def __init__(self, model: str, identity: str, tokenizer: ChatTokenizer, asked: Asked, *, chat: bool, told: Told):
        self._chat = chat
        self._asked = asked
        self._told = told
        self._tokenizer = tokenizer
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{identity}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def first(self, choice: Choice) -> bytes:
        """The chunk that opens a chat choice, or an echo."""
        if self._chat:
            return self._event(choice, {"role": "assistant", "content": ""}, None)
        echo = self._asked.echoes[choice.index]
        return self._event(choice, {"content": echo}, None) if echo else b""

    def chunk(self, choice: Choice, piece: str, tokens: Sequence[int], usage: dict[str, Any]) -> bytes:
        """New text."""
        return self._event(choice, {"content": piece}, None, tokens, usage)

    def last(self, choice: Choice) -> bytes:
        """The chunk with the finish reason."""
        return self._event(choice, {}, choice.finish)

    def usage_chunk(self, usage: dict[str, Any]) -> bytes:
        """The chunk with the usage and no choices."""
        return b"data: " + msgspec.json.encode({**self._chunk_base, "choices": [], "usage": usage}) + b"\n\n"

    def whole(self, choices: Iterable[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """The response that is not streamed."""
        rows = []
        for choice in choices:
            text = self._asked.echoes[choice.index] + choice.text
            said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            finish = None if choice.finish is None else choice.finish.value
            logprobs = self._logprobs(choice.shown)
            end = {"finish_reason": finish, "stop_reason": choice.stop}
            rows.append({"index": choice.index, **said, "logprobs": logprobs, **end})
        return {**self._base, "choices": rows, "usage": usage}

    def usage(self, choices: Iterable[Choice], cached: int) -> dict[str, Any]:
        """OpenAI's `usage`."""
        output = sum(choice.tokens for choice in choices)
        return {
            "prompt_tokens": self._asked.tokens,
            "completion_tokens": output,
            "total_tokens": self._asked.tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def _chunk_base(self) -> dict[str, Any]:
        return {**self._base, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _event(
        self,
        choice: Choice,
        delta: dict[str, str],
        finish: Finish | None,
        tokens: Sequence[int] = (),
        usage: dict[str, Any] | None = None,
    ) -> bytes:
        text: dict[str, Any] = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        end: dict[str, Any] = {"finish_reason": None}
        if finish is not None:
            end = {"finish_reason": finish.value, "stop_reason": choice.stop}
        logprobs = self._logprobs(tokens) if tokens else None
        row = {"index": choice.index, **text, "logprobs": logprobs, **end}
        more = {"usage": usage} if usage is not None and self._told.usage_everywhere else {}
        return b"data: " + msgspec.json.encode({**self._chunk_base, "choices": [row], **more}) + b"\n\n"

    def _logprobs(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        if self._told.top is None:
            return None
        names = [self._tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
        if self._chat:
            return {"content": [self._entry(name) for name in names], "refusal": None}
        starts = [len("".join(names[:at])) for at in range(len(names))]
        top = [{name: SURE} for name in names] if self._told.top else None
        return {
            "tokens": names,
            "token_logprobs": [SURE] * len(names),
            "top_logprobs": top,
            "text_offset": starts,
        }

    def _entry(self, name: str) -> dict[str, Any]:
        one = {"token": name, "logprob": SURE, "bytes": list(name.encode())}
        others = [
            {"token": f"other-{rank}", "logprob": OTHERS, "bytes": None} for rank in range(1, self._told.top or 0)
        ]
        return {**one, "top_logprobs": [one, *others] if self._told.top else []}
