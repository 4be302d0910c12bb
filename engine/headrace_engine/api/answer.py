"""One request from its mailbox to text: the choices, their stop strings, their usage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from headrace_engine.api.logprobs import Entry, Held
from headrace_engine.api.mailbox import Mailbox
from headrace_engine.api.schema import Generation
from headrace_engine.api.sse import DONE, Choice, Response, Usage
from headrace_engine.api.text import ChoiceText
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Delta, Finish, Submit, TokenLogprob


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to run."""

    identity: str
    body: Generation
    submits: list[Submit]  # one a choice
    prompt: int  # tokens
    echo: str = ""  # text that comes before the output


@dataclass
class Piece:
    """What is new in a choice: its text, and the entries of the tokens that the text begins with."""

    text: str
    entries: list[Entry] | None = None  # None: no logprobs were asked for


class RunningChoice:
    """One choice while it is generated."""

    def __init__(self, text: ChoiceText, stop_ids: frozenset[int], held: Held | None):
        """`held`: where logprobs were asked for."""
        self.text = text
        self.whole = Piece("", None if held is None else [])  # of a response that is not streamed
        self.finish: Finish | None = None
        self._stop_ids = stop_ids
        self._held = held

    def take(self, delta: Delta) -> Piece:
        """What is new. A stop id ends the choice and is no part of its text."""
        tokens = delta.tokens
        by_id = delta.finish is Finish.STOP and bool(tokens) and tokens[-1] in self._stop_ids
        taken = tokens[:-1] if by_id else tokens
        text = (
            self.text.feed(taken) if self._held is None else self._feed(self._held, taken, delta.logprobs[: len(taken)])
        )
        if not self.text.stopped and delta.finish is not None:
            self.text.tokens += by_id
            text += self.text.finish()
            self.finish = delta.finish
        if self.text.stopped:
            self.finish = Finish.STOP
        if self._held is None:
            return Piece(text)
        everything = self.finish is not None and not self.text.stopped
        return Piece(text, self._held.take(self.text.given, all_of=everything))

    def _feed(self, held: Held, tokens: list[int], logprobs: list[TokenLogprob]) -> str:
        """Token by token, to know where each one's text begins."""
        pieces = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            if self.text.stopped:
                break
            held.add(Entry(token, logprob, self.text.length))
            pieces.append(self.text.feed((token,)))
        return "".join(pieces)

    def keep(self, piece: Piece) -> None:
        """Adds to `whole`."""
        self.whole.text += piece.text
        if self.whole.entries is not None and piece.entries is not None:
            self.whole.entries += piece.entries


class Answer:
    """Reads a mailbox until every choice has finished. `abort` ends a choice in the core."""

    def __init__(self, prepared: Prepared, box: Mailbox, tokenizer: ChatTokenizer, abort: Callable[[list[str]], None]):
        self._prepared = prepared
        self._box = box
        self._abort = abort
        self._cached = 0  # prompt tokens
        body = prepared.body
        self._choices = [
            RunningChoice(
                ChoiceText(tokenizer.detokenizer(start=not prepared.echo), body.stops, body.min_tokens or 0),
                frozenset(submit.stop_ids),
                None if body.top is None else Held(),
            )
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
                self._choices[index].keep(piece)
        echo = self._prepared.echo
        finished = [
            Choice(echo + choice.whole.text, choice.finish or Finish.LENGTH, choice.whole.entries)
            for choice in self._choices
        ]
        return response.whole(finished, self.usage)

    async def events(self, response: Response) -> AsyncGenerator[bytes, None]:
        """The events of a stream, those that come together in one piece. Raises RequestError."""
        begun: set[int] = set()
        while self._running:
            data: list[bytes] = []
            for index, piece in await self._next():
                if index not in begun:
                    begun.add(index)
                    data.append(response.first(index, self._prepared.echo))
                data.append(response.text(index, piece.text, piece.entries))
                finish = self._choices[index].finish
                if finish is not None:
                    data.append(response.last(index, finish))
            if any(data):
                yield b"".join(data)
        yield (response.usage(self.usage) if self._prepared.body.usage_asked else b"") + DONE

    @property
    def _running(self) -> bool:
        return any(choice.finish is None for choice in self._choices)

    async def _next(self) -> list[tuple[int, Piece]]:
        """(choice, what is new) in the order of arrival; the text may be empty."""
        pieces: list[tuple[int, Piece]] = []
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
