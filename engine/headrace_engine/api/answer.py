"""One request from its mailbox to text: the choices, their stop strings, their usage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from headrace_engine.api.echo import Echo
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
    submits: list[Submit]  # the choices of each prompt in turn
    prompts: list[Sequence[int]]  # token ids
    texts: list[str | None]  # of each prompt; None: it came as token ids

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))


@dataclass
class Piece:
    """What is new in a choice: its text, and the entries of the tokens that the text begins with."""

    text: str
    entries: list[Entry] | None = None  # None: no logprobs were asked for


@dataclass(frozen=True)
class Style:
    """What is shown of a choice."""

    keeps_stop: bool = False  # the stop id stays in the text
    named: frozenset[int] = frozenset()  # stop ids that are told as the reason
    silent: bool = False  # nothing of the output
    offset: int = 0  # characters of the echo before the output


PLAIN = Style()


class RunningChoice:
    """One choice while it is generated."""

    def __init__(self, text: ChoiceText, stop_ids: frozenset[int], held: Held | None, style: Style = PLAIN):
        """`held`: where logprobs were asked for."""
        self.text = text
        self.whole = Piece("", None if held is None else [])  # of a response that is not streamed
        self.finish: Finish | None = None
        self.stop: str | int | None = None  # the string or id that ended it
        self._stop_ids = stop_ids
        self._held = held
        self._style = style

    def take(self, delta: Delta) -> Piece:
        """What is new. A stop id ends the choice and, unless it is to be kept, is no part of its text."""
        tokens = [] if self._style.silent else delta.tokens
        by_id = delta.finish is Finish.STOP and bool(tokens) and tokens[-1] in self._stop_ids
        cut = by_id and not self._style.keeps_stop
        taken = tokens[:-1] if cut else tokens
        text = (
            self.text.feed(taken) if self._held is None else self._feed(self._held, taken, delta.logprobs[: len(taken)])
        )
        if not self.text.stopped and delta.finish is not None:
            self.text.tokens += cut
            text += self.text.finish()
            self.finish = Finish.LENGTH if self._style.silent else delta.finish
            self.stop = tokens[-1] if by_id and tokens[-1] in self._style.named else None
        if self.text.stopped:
            self.finish, self.stop = Finish.STOP, self.text.stop
        if self._held is None:
            return Piece(text)
        everything = self.finish is not None and not self.text.stopped
        return Piece(text, self._moved(self._held.take(self.text.given, all_of=everything)))

    def _moved(self, entries: list[Entry]) -> list[Entry]:
        """Behind the echo."""
        offset = self._style.offset
        return [replace(entry, start=entry.start + offset) for entry in entries] if offset else entries

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
        self._tokenizer = tokenizer
        self._cached = [0] * len(prepared.prompts)  # tokens of each
        self._echoes = [Echo(tokenizer, *one) for one in zip(prepared.prompts, prepared.texts, strict=True)]
        self._choices = [self._choice(index, submit) for index, submit in enumerate(prepared.submits)]

    def _choice(self, index: int, submit: Submit) -> RunningChoice:
        body, echo = self._prepared.body, self._echoes[self._prompt_of(index)]
        special, keeps = body.skip_special_tokens is False, bool(body.include_stop_str_in_output)
        if body.echoes:
            detokenizer = echo.detokenizer(special=special)
        else:
            detokenizer = self._tokenizer.detokenizer(start=not body.goes_on, special=special)
        return RunningChoice(
            ChoiceText(detokenizer, body.stops, body.min_tokens or 0, keeps_stop=keeps),
            frozenset(submit.stop_ids),
            None if body.top is None else Held(),
            Style(
                keeps_stop=keeps,
                named=frozenset(body.stop_token_ids or ()),
                silent=body.only_echoes,
                offset=len(echo.text) if body.echoes else 0,
            ),
        )

    def _prompt_of(self, index: int) -> int:
        return index // self._prepared.body.choices

    @property
    def usage(self) -> Usage:
        """Tokens so far, over all choices."""
        completion = sum(choice.text.tokens for choice in self._choices)
        return Usage(self._prepared.tokens, completion, sum(self._cached))

    def _opening(self, index: int) -> Piece:
        """What comes before a choice's output."""
        body, echo = self._prepared.body, self._echoes[self._prompt_of(index)]
        if not body.echoes:
            return Piece("", None if body.top is None else [])
        return Piece(echo.text, None if body.top is None else echo.entries)

    async def whole(self, response: Response) -> bytes:
        """The body of a response that is not streamed. Raises RequestError."""
        while self._running:
            for index, piece in await self._next():
                self._choices[index].keep(piece)
        finished = []
        for index, choice in enumerate(self._choices):
            opening = self._opening(index)
            entries = None if choice.whole.entries is None else [*(opening.entries or []), *choice.whole.entries]
            text = opening.text + choice.whole.text
            finished.append(Choice(text, choice.finish or Finish.LENGTH, entries, choice.stop))
        return response.whole(finished, self.usage)

    async def events(self, response: Response) -> AsyncGenerator[bytes, None]:
        """The events of a stream, those that come together in one piece. Raises RequestError."""
        begun: set[int] = set()
        while self._running:
            data: list[bytes] = []
            for index, piece in await self._next():
                if index not in begun:
                    begun.add(index)
                    opening = self._opening(index)
                    data.append(response.first(index, opening.text, opening.entries))
                data.append(response.text(index, piece.text, piece.entries))
                choice = self._choices[index]
                if choice.finish is not None:
                    data.append(response.last(index, choice.finish, choice.stop))
            if any(data):
                yield b"".join(self._shown(response, data))
        yield (response.usage(self.usage) if self._prepared.body.usage_asked else b"") + DONE

    def _shown(self, response: Response, chunks: list[bytes]) -> list[bytes]:
        if not self._prepared.body.usage_everywhere:
            return chunks
        return [response.with_usage(chunk, self.usage) for chunk in chunks]

    @property
    def _running(self) -> bool:
        return any(choice.finish is None for choice in self._choices)

    async def _next(self) -> list[tuple[int, Piece]]:
        """(choice, what is new) in the order of arrival; the text may be empty."""
        pieces: list[tuple[int, Piece]] = []
        for index, delta in await self._box.get():
            choice, prompt = self._choices[index], self._prompt_of(index)
            if choice.finish is not None:
                continue  # computed before the stop string was found
            if index % self._prepared.body.choices == 0:
                self._cached[prompt] = max(self._cached[prompt], delta.cached)
            if delta.prompt_logprobs:  # a prompt's first choice brings them before the others begin
                self._echoes[prompt].logprobs = delta.prompt_logprobs
            pieces.append((index, choice.take(delta)))
            if choice.text.stopped and delta.finish is None:
                self._box.dismiss(delta.id)
                self._abort([delta.id])
        return pieces
