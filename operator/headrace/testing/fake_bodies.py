"""How a FakeEngine reads OpenAI bodies: the fields that engine/PROTOCOL.md names, nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of both routes."""

    model: str
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    headrace: RequestHints = RequestHints()

    @property
    def limit(self) -> int | None:
        """Output tokens asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def usage_asked(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


_DECODER = msgspec.json.Decoder(Body)


def _invalid(param: str | None, message: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, message if param is None else f"{param}: {message}", param=param)


def read_body(data: bytes, *, chat: bool) -> Body:
    """The body, checked. Raises RequestError naming the field."""
    try:
        body = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        text = str(error)
        path = text.partition(" - at `$.")[2].rstrip("`")
        if "unknown field `" in text:
            path = ".".join(filter(None, [path, text.split("`")[1]]))
        elif "required field `" in text:
            path = text.split("`")[1]
        raise _invalid(path or None, text.partition(" - at")[0]) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _invalid(None, f"the body is not valid JSON: {error}") from error
    field, other = ("messages", "prompt") if chat else ("prompt", "messages")
    if not getattr(body, field):
        raise _invalid(field, "is required and must not be empty")
    if getattr(body, other) is not None:
        raise _invalid(other, "is an unknown field here")
    _check_numbers(body)
    return body


def _check_numbers(body: Body) -> None:
    if body.limit is not None and body.limit < 1:
        raise _invalid("max_tokens" if body.max_completion_tokens is None else "max_completion_tokens", "must be >= 1")
    if body.n is not None and not 1 <= body.n <= 16:
        raise _invalid("n", "must be 1 to 16")
    if body.temperature is not None and not 0 <= body.temperature <= 2:
        raise _invalid("temperature", "must be 0 to 2")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise _invalid("top_p", "must be above 0 and at most 1")


def prompt_tokens(body: Body, tokenizer: ChatTokenizer) -> list[int]:
    """Token ids of the prompt. Raises RequestError."""
    if body.messages is not None:
        return tokenizer.encode_chat(body.messages)
    if isinstance(body.prompt, str):
        return tokenizer.encode_text(body.prompt)
    return list(body.prompt or [])


def prompt_text(body: Body) -> str:
    """What an echo answers: the last message's text, or the prompt."""
    if body.messages is None:
        return body.prompt if isinstance(body.prompt, str) else ""
    content = body.messages[-1].get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
