"""A prompt that is part of its answer: its text, and the logprobs of its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from headrace_engine.api.logprobs import Entry
from headrace_wire.chat import ChatTokenizer, Detokenizer
from headrace_wire.protocol import TokenLogprob


class Echo:
    """One prompt. As a string it is given back as it came; token ids are given back as the text they are."""

    def __init__(self, tokenizer: ChatTokenizer, tokens: Sequence[int], text: str | None):
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._given = text
        self.logprobs: list[TokenLogprob] = []  # of the second token on, once the core has brought them

    @cached_property
    def text(self) -> str:
        """An incomplete character at the end of token ids is left to the output, which may complete it."""
        return self._tokenizer.detokenizer().feed(self._tokens) if self._given is None else self._given

    def detokenizer(self, *, special: bool) -> Detokenizer:
        """For the output that goes on with the prompt."""
        if self._given is not None:
            return self._tokenizer.detokenizer(start=False, special=special)
        detokenizer = self._tokenizer.detokenizer(special=special)
        detokenizer.feed(self._tokens)
        return detokenizer

    @cached_property
    def entries(self) -> list[Entry]:
        """One a token, once `logprobs` is set: the first has none, since nothing comes before it."""
        detokenizer, at, found = self._tokenizer.detokenizer(), 0, []
        own: list[TokenLogprob | None] = [None, *self.logprobs]
        for token, logprob in zip(self._tokens, own, strict=True):
            found.append(Entry(token, logprob, min(at, len(self.text))))
            at += len(detokenizer.feed((token,)))
        return found
