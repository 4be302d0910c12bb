"""One request from its mailbox to text: the choices, their stop strings, their usage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from headrace_engine.api.mailbox import Mailbox
from headrace_engine.api.schema import Generation
from headrace_engine.api.sse import DONE, Choice, Response, Usage
from headrace_engine.api.text import ChoiceText
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Delta, Finish, Submit


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to run."""

    identity: str
    body: Generation
    submits: list[Submit]  # one a choice
    prompt: int  # tokens


class RunningChoice:
    """One choice while it is generated."""

    def __init__(self, text: ChoiceText, stop_ids: frozenset[int]):
        self.text = text
        self.pieces: list[str] = []  # of a response that is not streamed
        self.finish: Finish | None = None
        self._stop_ids = stop_ids

    def take(self, delta: Delta) -> str:
        """New text. A stop id ends the choice and is no part of its text."""
        tokens = delta.tokens
        by_id = delta.finish is Finish.STOP and bool(tokens) and tokens[-1] in self._stop_ids
        piece = self.text.feed(tokens[:-1] if by_id else tokens)
        if not self.text.stopped and delta.finish is not None:
            self.text.tokens += by_id
            piece += self.text.finish()
            self.finish = delta.finish
        if self.text.stopped:
            self.finish = Finish.STOP
        return piece


class Answer:
    """Reads a mailbox until every choice has finished. `abort` ends a choice in the core."""

    def __init__(self, prepared: Prepared, box: Mailbox, tokenizer: ChatTokenizer, abort: Callable[[list[str]], None]):
        self._prepared = prepared
        self._box = box
        self._abort = abort
        self._cached = 0  # prompt tokens
        stops = prepared.body.stops
        self._choices = [
            RunningChoice(ChoiceText(tokenizer.detokenizer(), stops), frozenset(submit.stop_ids))
            for submit in prepared.submits
        ]

    @property
    def usage(self) -> Usage:
        """Tokens so far, over all choices."""
        completion = sum(choice.text.tokens for choice in self._choices)
        return Usage(self._prepared.prompt, completion, self._cached)

    async def whole(self, response: Response) -> bytes:
        """The body of a response that is not streamed. Raises RequestError."""
        while self._running:
            for index, piece in await self._next():
                self._choices[index].pieces.append(piece)
        finished = [Choice("".join(choice.pieces), choice.finish or Finish.LENGTH) for choice in self._choices]
        return response.whole(finished, self.usage)

    async def events(self, response: Response) -> AsyncGenerator[bytes, None]:
        """The events of a stream, those that come together in one piece. Raises RequestError."""
        begun: set[int] = set()
        while self._running:
            data: list[bytes] = []
            for index, piece in await self._next():
                if index not in begun:
                    begun.add(index)
                    data.append(response.first(index))
                data.append(response.text(index, piece))
                finish = self._choices[index].finish
                if finish is not None:
                    data.append(response.last(index, finish))
            if any(data):
                yield b"".join(data)
        yield (response.usage(self.usage) if self._prepared.body.usage_asked else b"") + DONE

    @property
    def _running(self) -> bool:
        return any(choice.finish is None for choice in self._choices)

    async def _next(self) -> list[tuple[int, str]]:
        """(choice, new text) in the order of arrival; the text may be empty."""
        pieces: list[tuple[int, str]] = []
        for index, delta in await self._box.get():
            choice = self._choices[index]
            if choice.finish is not None:
                continue  # computed before the stop string was found
            if index == 0:
                self._cached = max(self._cached, delta.cached)
            pieces.append((index, choice.take(delta)))
            if choice.text.stopped and delta.finish is None:
                self._box.dismiss(delta.id)
                self._abort([delta.id])
        return pieces
