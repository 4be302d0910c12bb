"""The two routes that generate: body -> tokens -> Submits -> answer; every request ends exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass

from headrace_engine.api.answer import Answer
from headrace_engine.api.http import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    check_content,
    left,
    read_body,
    respond,
    respond_error,
)
from headrace_engine.api.parts import Parts
from headrace_engine.api.prepare import prepare
from headrace_engine.api.schema import MAX_BODY
from headrace_engine.api.sse import HEADERS, Response, error_event
from headrace_wire.reasons import Reason, RequestError

log = logging.getLogger(__name__)


@dataclass
class Head:
    """How far a response has got."""

    sent: bool = False


class Generate:
    """Answers `POST /v1/chat/completions` and `/v1/completions`."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self.open = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, chat: bool) -> None:
        """One request, whatever becomes of it."""
        self.open += 1
        outcome = Reason.INTERNAL.value
        try:
            outcome = await self._answered(scope, receive, send, chat=chat)
        finally:
            self.open -= 1
            self._parts.metrics.ended(outcome)

    async def _answered(self, scope: Scope, receive: Receive, send: Send, *, chat: bool) -> str:
        """Answers while the client stays. Returns the outcome."""
        head = Head()
        try:
            check_content(scope, MAX_BODY)
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
        parts, task = self._parts, asyncio.current_task()
        parts.limits()  # raises where nothing is taken now: before any work is done
        prepared = await prepare(parts, data, chat=chat)
        overflowed = task.cancel if task is not None else (lambda: None)
        response = Response(
            prepared.identity, parts.served_name, int(time.time()), chat=chat, token_text=parts.tokenizer.token_bytes
        )
        with parts.link.open(prepared.submits, overflowed) as box:
            parts.metrics.began(prepared.tokens)
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
