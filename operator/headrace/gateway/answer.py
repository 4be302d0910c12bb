"""A whole answer from its chunks, for clients that do not stream: engines always stream to the gateway. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


class Assembler:
    """Joins the chunks of one answer, chat or plain. Texts are joined, log probabilities appended."""

    def __init__(self, chat: bool):
        self._chat = chat
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self.size = 0  # bytes of the chunks taken

    def take(self, data: bytes) -> None:
        """Add one chunk. Raises msgspec.DecodeError."""
        self.size += len(data)
        chunk: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        for name in ("id", "created", "model", "system_fingerprint"):
            if name in chunk:
                self._top.setdefault(name, chunk[name])
        for part in chunk.get("choices", ()):
            self._take_choice(part)

    def _take_choice(self, part: dict[str, Any]) -> None:
        choice = self._choices.setdefault(part.get("index", 0), _Choice())
        delta = (part.get("delta") or {}) if self._chat else {"text": part.get("text")}
        for name, value in delta.items():
            if isinstance(value, str) and name != "role":
                choice.texts.setdefault(name, []).append(value)
        if part.get("logprobs"):
            choice.logprobs = _join(choice.logprobs, part["logprobs"])
        choice.finish_reason = part.get("finish_reason") or choice.finish_reason
        if "stop_reason" in part:
            choice.stopped_by = {"stop_reason": part["stop_reason"]}

    def body(self, usage: dict[str, Any]) -> bytes:
        """The JSON of the whole answer."""
        choices = []
        for index in sorted(self._choices):
            choice = self._choices[index]
            texts = {name: "".join(parts) for name, parts in choice.texts.items()}
            shown = {"message": {"role": "assistant", "content": "", **texts}} if self._chat else {"text": "", **texts}
            rest = {"logprobs": choice.logprobs, "finish_reason": choice.finish_reason, **choice.stopped_by}
            choices.append({"index": index, **shown, **rest})
        kind = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode({**self._top, "object": kind, "choices": choices, "usage": usage})


@dataclass
class _Choice:
    """What has come of one choice."""

    texts: dict[str, list[str]] = field(default_factory=dict)  # content and the like, in pieces
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stopped_by: dict[str, Any] = field(default_factory=dict)  # `stop_reason`, where an engine tells it


def _join(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Lists appended, other values replaced."""
    joined = dict(old or {})
    for name, value in new.items():
        before = joined.get(name)
        joined[name] = before + value if isinstance(before, list) and isinstance(value, list) else value
    return joined
