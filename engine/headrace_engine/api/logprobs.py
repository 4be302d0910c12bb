"""Logprobs of a choice: one entry for each token whose text is given out, in OpenAI's two shapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_wire.protocol import TokenLogprob

LEAST = -9999.0  # stands for minus infinity, which JSON has no word for
TokenText = Callable[[int], bytes]


@dataclass(frozen=True)
class Entry:
    """One token of output."""

    token: int
    logprob: TokenLogprob | None  # None: of a prompt's first token, which nothing comes before
    start: int  # characters of the choice's text before it


class Held:
    """Entries whose text is not given out yet: they come and go with it, and a cut text takes them along."""

    def __init__(self) -> None:
        self._held: deque[Entry] = deque()

    def add(self, entry: Entry) -> None:
        """The entry of the next token."""
        self._held.append(entry)

    def take(self, given: int, *, all_of: bool = False) -> list[Entry]:
        """Entries whose text begins before character `given`, or all."""
        taken = []
        while self._held and (all_of or self._held[0].start < given):
            taken.append(self._held.popleft())
        return taken


class Shapes:
    """Entries as JSON. `token_text` gives a token's bytes, special ones by their name."""

    def __init__(self, token_text: TokenText, *, chat: bool):
        self._token_text = token_text
        self._chat = chat

    def of(self, entries: Sequence[Entry] | None) -> dict[str, Any] | None:
        """`logprobs` of a choice or chunk; None where nothing was asked."""
        if entries is None:
            return None
        if self._chat:
            return {"content": [self._content(entry) for entry in entries], "refusal": None}
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [None if e.logprob is None else _finite(e.logprob.logprob) for e in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": [entry.start for entry in entries],
        }

    def _content(self, entry: Entry) -> dict[str, Any]:
        own = entry.logprob or TokenLogprob(0.0)
        top = [self._token(token, logprob) for token, logprob in own.top]
        return {**self._token(entry.token, own.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._token_text(token)
        return {"token": data.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(data)}

    def _top(self, entry: Entry) -> dict[str, float] | None:
        """The likeliest tokens and, as OpenAI has it, the drawn one."""
        if entry.logprob is None:
            return None
        pairs = [*entry.logprob.top, (entry.token, entry.logprob.logprob)]
        top: dict[str, float] = {}
        for token, logprob in pairs:
            top.setdefault(self._name(token), _finite(logprob))
        return top

    def _name(self, token: int) -> str:
        """Text, or the bytes where they are not UTF-8 on their own."""
        data = self._token_text(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
