"""A body to a request that is ready to run: read, checked, tokenized."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from headrace_engine.api.answer import Prepared
from headrace_engine.api.parts import LONG_BYTES, Parts
from headrace_engine.api.reading import read_chat, read_completion
from headrace_engine.api.schema import ChatBody, CompletionBody
from headrace_engine.api.submit import Fresh, check_prompt, submits
from headrace_wire.chat import ChatTokenizer

Body = ChatBody | CompletionBody


async def prepare(parts: Parts, data: bytes, *, chat: bool) -> Prepared:
    """Raises RequestError. Short bodies are read on the loop, long ones where they are tokenized."""
    read = read_chat if chat else read_completion
    if len(data) > LONG_BYTES:
        body: Body = await parts.threads.run(lambda: read(data), size=len(data))
    else:
        body = read(data)
    parts.check_model(body.model)
    limits = parts.limits()
    room = min(limits.context, limits.pool)  # tokens
    prompts = await parts.threads.run(lambda: _encode(parts.tokenizer, body, room), size=len(data))
    limits = parts.limits()  # as they are now: a drain may have begun
    for tokens in prompts:
        check_prompt(tokens, limits, "messages" if chat else "prompt")
    fresh = Fresh(secrets.token_hex(12), secrets.randbits(64), parts.defaults)
    made = submits(body, prompts, limits, eos_ids=parts.tokenizer.eos_ids, fresh=fresh)
    identity = (body.headrace.id if body.headrace is not None else "") or fresh.identity
    return Prepared(identity, body, made, prompts, _texts(body))


def _encode(tokenizer: ChatTokenizer, body: Body, room: int) -> list[Sequence[int]]:
    """Runs in a thread: templating is short, encoding releases the interpreter lock. Raises RequestError."""
    if isinstance(body, ChatBody):
        return [tokenizer.encode_chat([message.plain() for message in body.messages], body.rendering, room=room)]
    for one in body.prompts:
        if isinstance(one, str):
            tokenizer.check_bytes(one, room, "prompt")
    special = body.add_special_tokens is not False
    return [tokenizer.encode_text(one, special=special) if isinstance(one, str) else one for one in body.prompts]


def _texts(body: Body) -> list[str | None]:
    if isinstance(body, ChatBody):
        return [None]
    return [one if isinstance(one, str) else None for one in body.prompts]
