"""Text of one choice: detokenized, cut at the first stop string, never giving out what might become one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_wire.chat import Detokenizer


class ChoiceText:
    """Pieces joined equal the whole text. Tokens are taken one by one, so how they arrive in groups cannot matter."""

    def __init__(self, detokenizer: Detokenizer, stops: tuple[str, ...] = ()):
        self._detokenizer = detokenizer
        self._stops = stops
        self._held = ""  # may be the beginning of a stop string
        self.stopped = False  # a stop string was found; nothing comes after it
        self.tokens = 0  # tokens taken, those of the stop string included

    def feed(self, tokens: Sequence[int]) -> str:
        """Text that can be given out now."""
        if not self._stops:
            self.tokens += len(tokens)
            return self._detokenizer.feed(tokens)
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            pieces.append(self._take(self._detokenizer.feed((token,))))
        return "".join(pieces)

    def finish(self) -> str:
        """What was held back, and U+FFFD for an incomplete character."""
        if self.stopped:
            return ""
        last = self._take(self._detokenizer.finish())
        held, self._held = self._held, ""
        return last + held

    def _take(self, text: str) -> str:
        if not text:
            return ""
        pending = self._held + text
        found = [at for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return pending[: min(found)]
        keep = max((_overlap(pending, stop) for stop in self._stops), default=0)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
