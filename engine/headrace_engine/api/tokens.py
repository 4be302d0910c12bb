"""`POST /tokenize` and `/detokenize`: text to token ids and back, as the engine counts them."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace_engine.api.http import Receive, Scope, Send, check_content, read_body, respond
from headrace_engine.api.parts import Parts
from headrace_engine.api.reading import read_detokenize, read_tokenize
from headrace_engine.api.schema import MAX_BODY, DetokenizeBody, TokenizeBody, invalid


class Tokens:
    """Both routes; nothing is computed by the model."""

    def __init__(self, parts: Parts):
        self._parts = parts

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises RequestError."""
        check_content(scope, MAX_BODY)
        data = await read_body(receive, MAX_BODY)
        await respond(send, 200, await self._parts.threads.run(lambda: self._tokenized(data), size=len(data)))

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises RequestError."""
        check_content(scope, MAX_BODY)
        data = await read_body(receive, MAX_BODY)
        await respond(send, 200, await self._parts.threads.run(lambda: self._detokenized(data), size=len(data)))

    def _tokenized(self, data: bytes) -> bytes:
        body, tokenizer, ready = read_tokenize(data), self._parts.tokenizer, self._parts.link.ready
        self._check_model(body)
        if body.messages is not None:
            tokens = tokenizer.encode_chat([message.plain() for message in body.messages], body.rendering)
        else:
            tokens = tokenizer.encode_text(body.prompt or "", special=body.add_special_tokens is not False)
        answer: dict[str, Any] = {"count": len(tokens), "max_model_len": ready and ready.model.max_tokens}
        names = [tokenizer.name(token) for token in tokens] if body.return_token_strs else None
        return msgspec.json.encode({**answer, "tokens": tokens, "token_strs": names})

    def _detokenized(self, data: bytes) -> bytes:
        body, size = read_detokenize(data), self._parts.tokenizer.size
        self._check_model(body)
        if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < size:
            raise invalid("tokens", f"token ids are 0 to {size - 1}")
        return msgspec.json.encode({"prompt": self._parts.tokenizer.decode(body.tokens, special=True)})

    def _check_model(self, body: TokenizeBody | DetokenizeBody) -> None:
        if body.model is not None:
            self._parts.check_model(body.model)
