"""The two routes that generate: body -> tokens -> Submits -> answer; every request ends exactly once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from headrace_engine.api.answer import Answer, Prepared
from headrace_engine.api.client import CoreLink
from headrace_engine.api.defaults import NO_DEFAULTS, Defaults
from headrace_engine.api.drain import Drain
from headrace_engine.api.http import ClientLeft, Receive, Send, left, read_body, respond, respond_error
from headrace_engine.api.mailbox import failure
from headrace_engine.api.metrics import Metrics
from headrace_engine.api.schema import MAX_BODY, ChatBody, CompletionBody, read_chat, read_completion
from headrace_engine.api.sse import HEADERS, Response, error_event
from headrace_engine.api.submit import Fresh, Limits, check_prompt, submits
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.reasons import Reason, RequestError

log = logging.getLogger(__name__)

LOADING_RETRY_S = 5.0


@dataclass
class Parts:
    """What the routes work with."""

    link: CoreLink
    tokenizer: ChatTokenizer
    metrics: Metrics
    drain: Drain
    threads: Executor  # tokenizing
    served_name: str
    defaults: Defaults = NO_DEFAULTS  # of sampling


@dataclass
class Head:
    """How far a response has got."""

    sent: bool = False


class Generate:
    """Answers `POST /v1/chat/completions` and `/v1/completions`."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self.open = 0  # requests that are being answered

    async def __call__(self, receive: Receive, send: Send, *, chat: bool) -> None:
        """One request, whatever becomes of it."""
        self.open += 1
        outcome = Reason.INTERNAL.value
        try:
            outcome = await self._answered(receive, send, chat=chat)
        finally:
            self.open -= 1
            self._parts.metrics.ended(outcome)

    async def _answered(self, receive: Receive, send: Send, *, chat: bool) -> str:
        """Answers while the client stays. Returns the outcome."""
        head = Head()
        try:
            data = await read_body(receive, MAX_BODY)
            work = asyncio.create_task(self._generate(data, send, head, chat=chat))
            watch = asyncio.create_task(left(receive))
            try:
                await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
                if not work.done():
                    work.cancel()
            return await work
        except ClientLeft:
            return Reason.CANCELLED.value
        except asyncio.CancelledError:
            return Reason.CANCELLED.value
        except RequestError as error:
            await _refuse(send, head, error)
            return error.reason.value
        except Exception:
            log.exception("request failed")
            await _refuse(send, head, RequestError(Reason.INTERNAL, "the engine failed on this request"))
            return Reason.INTERNAL.value

    async def _generate(self, data: bytes, send: Send, head: Head, *, chat: bool) -> str:
        self._check_open()
        prepared = await self._prepare(data, chat=chat)
        self._check_open()
        parts, task = self._parts, asyncio.current_task()
        overflowed = task.cancel if task is not None else (lambda: None)
        response = Response(
            prepared.identity, parts.served_name, int(time.time()), chat=chat, token_text=parts.tokenizer.token_bytes
        )
        with parts.link.open(prepared.submits, overflowed) as box:
            parts.metrics.began(prepared.prompt)
            answer = Answer(prepared, box, parts.tokenizer, lambda ids: parts.link.abort(ids, Reason.CANCELLED))
            try:
                if prepared.body.stream:
                    await _stream(answer, response, send, head)
                else:
                    body = await answer.whole(response)
                    head.sent = True
                    await respond(send, 200, body)
            except asyncio.CancelledError:
                if not box.overflowed:
                    raise
                return Reason.SLOW_READER.value  # the connection is closed unfinished
        return "ok"

    def _check_open(self) -> None:
        link = self._parts.link
        if self._parts.drain.begun.is_set():
            raise failure(Reason.DRAINING)
        if link.died.is_set():
            raise failure(Reason.ENGINE_FAILED)
        if link.ready is None:
            raise RequestError(Reason.NO_CAPACITY, "the model is still being loaded", retry_after=LOADING_RETRY_S)

    async def _prepare(self, data: bytes, *, chat: bool) -> Prepared:
        """Reads, checks and tokenizes. Raises RequestError."""
        body: ChatBody | CompletionBody = read_chat(data) if chat else read_completion(data)
        if body.model != self._parts.served_name:
            raise RequestError(
                Reason.MODEL_NOT_FOUND,
                f"model: there is no {body.model[:100]!r} here; this engine serves {self._parts.served_name!r}",
                param="model",
            )
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(self._parts.threads, self._encode, body)
        limits = self._limits()
        check_prompt(tokens, limits, "messages" if chat else "prompt")
        fresh = Fresh(secrets.token_hex(12), secrets.randbits(64), self._parts.defaults)
        made = submits(body, tokens, limits, eos_ids=self._parts.tokenizer.eos_ids, fresh=fresh)
        identity = (body.headrace.id if body.headrace is not None else "") or fresh.identity
        return Prepared(identity, body, made, len(tokens), self._echo(body))

    def _echo(self, body: ChatBody | CompletionBody) -> str:
        if not body.echoes or not isinstance(body, CompletionBody):
            return ""
        return body.prompt if isinstance(body.prompt, str) else self._parts.tokenizer.decode(body.prompt)

    def _encode(self, body: ChatBody | CompletionBody) -> Sequence[int]:
        """Runs in a thread: templating is short, encoding releases the interpreter lock."""
        if isinstance(body, ChatBody):
            return self._parts.tokenizer.encode_chat([message.plain() for message in body.messages])
        return self._parts.tokenizer.encode_text(body.prompt) if isinstance(body.prompt, str) else body.prompt

    def _limits(self) -> Limits:
        ready = self._parts.link.ready
        if ready is None:
            raise failure(Reason.ENGINE_FAILED)
        return Limits(ready.model.max_tokens, ready.total_pages * PAGE_TOKENS, ready.shape.vocab)


async def _stream(answer: Answer, response: Response, send: Send, head: Head) -> None:
    """The head goes with the first events, so that what fails before them has a status of its own."""
    async with aclosing(answer.events(response)) as events:
        async for data in events:
            if not head.sent:
                head.sent = True
                await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, head: Head, error: RequestError) -> None:
    """The error as a response, or as the last event of a stream that has begun."""
    if not head.sent:
        await respond_error(send, error)
        return
    await send({"type": "http.response.body", "body": error_event(error)})
