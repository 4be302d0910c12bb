"""Text of one choice: detokenized, cut at the first stop string, never giving out what might become one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_wire.chat import Detokenizer


class ChoiceText:
    """Pieces joined equal the whole text. Tokens are taken one by one, so how they arrive in groups cannot matter.

    `least` tokens are taken before stop strings are looked for.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: tuple[str, ...] = (), least: int = 0, *, keeps_stop: bool = False
    ):
        """`keeps_stop`: the stop string that is found stays at the end of the text."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._least = least
        self._keeps_stop = keeps_stop
        self._held = ""  # may be the beginning of a stop string
        self.given = 0  # characters given out
        self.stop: str | None = None  # the stop string that was found; nothing comes after it
        self.tokens = 0  # tokens taken, those of the stop string included

    @property
    def stopped(self) -> bool:
        """Was a stop string found?"""
        return self.stop is not None

    @property
    def length(self) -> int:
        """Characters that the tokens so far completed, held ones included: where the next token's text begins."""
        return self.given + len(self._held)

    def feed(self, tokens: Sequence[int]) -> str:
        """Text that can be given out now."""
        if not self._stops:
            self.tokens += len(tokens)
            return self._give(self._detokenizer.feed(tokens))
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            text = self._detokenizer.feed((token,))
            pieces.append(self._take(text) if self.tokens > self._least else self._give(text))
        return "".join(pieces)

    def finish(self) -> str:
        """What was held back, and U+FFFD for an incomplete character."""
        if self.stopped:
            return ""
        text = self._detokenizer.finish()
        last = self._take(text) if self.tokens > self._least else self._give(text)
        held, self._held = self._held, ""
        return last + self._give(held)

    def _give(self, text: str) -> str:
        self.given += len(text)
        return text

    def _take(self, text: str) -> str:
        if not text:
            return ""
        pending = self._held + text
        found = [(at, stop) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda one: one[0])
            self.stop, self._held = stop, ""
            return self._give(pending[: at + len(stop) if self._keeps_stop else at])
        keep = max((_overlap(pending, stop) for stop in self._stops), default=0)
        self._held = pending[len(pending) - keep :]
        return self._give(pending[: len(pending) - keep])


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
