"""What a FakeEngine says: its answers as tokens, with the stops, limits and biases of the request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from headrace.testing.fake_answer import Choice
from headrace.testing.fake_bodies import Body, prompts_text, prompts_tokens
from headrace.testing.fake_scheduler import Scheduler, Sequence
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import Finish
from headrace_wire.reasons import Reason, RequestError

ALWAYS, NEVER = 100.0, -100.0  # biases that decide; those between do not move an answer that is not drawn


@dataclass(frozen=True)
class Piece:
    """New text of a choice with its tokens, and whether it was the last."""

    choice: Choice
    text: str
    tokens: tuple[int, ...]
    finish: Finish | None


class Speaker:
    """Makes the sequences of a request and speaks them."""

    def __init__(self, tokenizer: ChatTokenizer, scheduler: Scheduler, context: int, answer: Callable[[str], str]):
        """`context`: tokens of prompt and output; `answer`: to a question."""
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._context = context
        self._answer = answer

    def sequences(self, body: Body, *, chat: bool) -> list[Sequence]:
        """The choices of each prompt in turn. Raises RequestError."""
        found: list[Sequence] = []
        texts = prompts_text(body, self._tokenizer)
        for prompt, text in zip(prompts_tokens(body, self._tokenizer), texts, strict=True):
            if len(prompt) + 1 > self._context:
                raise RequestError(
                    Reason.CONTEXT_EXCEEDED,
                    f"the prompt has {len(prompt)} tokens; the context of {self._context} tokens must also hold one "
                    "of output",
                    param="messages" if chat else "prompt",
                )
            room = self._context - len(prompt)
            limit = room if body.limit is None else min(body.limit, room)
            answer = self._tokens(body, text, limit)
            found += [_sequence(body, prompt, answer, limit) for _ in range(body.choices)]
        return found

    def _tokens(self, body: Body, question: str, limit: int) -> list[int]:
        """The whole answer, its end included."""
        biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
        ends = set(self._tokenizer.eos_ids)
        said = [token for token in self._tokenizer.encode_text(self._answer(question)) if biases.get(token) != NEVER]
        forced = [token for token, bias in biases.items() if bias == ALWAYS]
        said = forced[:1] if forced else said
        least = limit if body.ignore_eos else min(body.min_tokens or 0, limit)
        if len(said) < least or forced:
            said = list(itertools.islice(itertools.cycle(said or [0]), limit if forced else least))
        stops = set(body.stop_token_ids or ()) | (set() if body.ignore_eos else ends)
        end = next((at for at, token in enumerate(said) if token in stops and at >= (body.min_tokens or 0)), None)
        if end is not None:
            return said[: end + 1]
        return said if body.ignore_eos or forced else [*said, *self._tokenizer.eos_ids[:1]]

    async def pieces(self, body: Body, sequences: list[Sequence]) -> AsyncGenerator[Piece, None]:
        """Each choice's new text as it comes; `finish` is set with its last one."""
        queue: asyncio.Queue[Piece | RequestError] = asyncio.Queue()
        choices = [Choice(index) for index in range(len(sequences))]

        async def produce(choice: Choice, sequence: Sequence) -> None:
            try:
                async for piece in self._texts(choice, body, sequence):
                    queue.put_nowait(piece)
            except RequestError as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(produce(*pair)) for pair in zip(choices, sequences, strict=True)]
        try:
            running = len(choices)
            while running:
                item = await queue.get()
                if isinstance(item, RequestError):
                    raise item
                running -= item.finish is not None
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _texts(self, choice: Choice, body: Body, sequence: Sequence) -> AsyncGenerator[Piece, None]:
        text = _Text(self._tokenizer, body)
        ends = set(body.stop_token_ids or ()) | (set() if body.ignore_eos else set(self._tokenizer.eos_ids))
        async with aclosing(self._scheduler.tokens(sequence)) as tokens:
            async for token in tokens:
                choice.tokens += 1
                by_id = token in ends and choice.tokens == len(sequence.answer)
                shown = () if by_id and not body.include_stop_str_in_output else (token,)
                piece = text.feed(shown, choice.tokens > (body.min_tokens or 0))
                if text.stopped:
                    choice.finish, choice.stop = Finish.STOP, text.stop
                    yield Piece(choice, piece, shown, choice.finish)
                    return
                yield Piece(choice, piece, shown, None)
        ended = bool(sequence.answer) and sequence.answer[-1] in ends and len(sequence.answer) <= sequence.limit
        choice.finish = Finish.STOP if ended else Finish.LENGTH
        if ended and sequence.answer[-1] in (body.stop_token_ids or ()):
            choice.stop = sequence.answer[-1]
        yield Piece(choice, text.finish(), (), choice.finish)


class _Text:
    """Text of a choice, cut at the first stop string; what may become one is held."""

    def __init__(self, tokenizer: ChatTokenizer, body: Body):
        self._detokenizer = tokenizer.detokenizer(special=body.skip_special_tokens is False)
        self._stops = body.stops
        self._keeps = bool(body.include_stop_str_in_output)
        self._held = max((len(stop) for stop in body.stops), default=1) - 1  # characters kept back
        self._text = ""
        self._sent = 0
        self.stop: str | None = None  # the one that was found

    @property
    def stopped(self) -> bool:
        """Was a stop string found?"""
        return self.stop is not None

    def feed(self, tokens: tuple[int, ...], looks: bool) -> str:
        """New text; `looks`: stop strings count by now."""
        before = len(self._text)
        self._text += self._detokenizer.feed(tokens)
        found = [
            (at, stop)
            for stop in self._stops
            if looks and (at := self._text.find(stop, max(0, before - self._held))) >= 0
        ]
        if found:
            at, stop = min(found)
            self.stop = stop
            self._text = self._text[: at + len(stop) if self._keeps else at]
            return self._take(len(self._text))
        return self._take(len(self._text) - self._held)

    def finish(self) -> str:
        """What was held, and what is left of a character."""
        self._text += self._detokenizer.finish()
        return self._take(len(self._text))

    def _take(self, end: int) -> str:
        piece = self._text[self._sent : max(self._sent, end)]
        self._sent += len(piece)
        return piece


def _sequence(body: Body, prompt: list[int], answer: list[int], limit: int) -> Sequence:
    hints = body.hints
    return Sequence(
        prompt=prompt,
        answer=answer,
        limit=limit,
        holder=hints.holder,
        priority=hints.priority,
        salt=_salt(hints.salt) + (body.cache_salt or "").encode(),
        left_s=None if hints.left_ms is None else hints.left_ms / 1000,
    )


def _salt(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise RequestError(Reason.INVALID_REQUEST, "headrace.salt: must be hex", param="headrace.salt") from error
