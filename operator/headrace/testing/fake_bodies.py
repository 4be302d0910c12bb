"""How a FakeEngine reads OpenAI bodies: the fields that engine/PROTOCOL.md names, nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace_wire.chat import ChatTokenizer, Rendering
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError

_RANGES = {  # inclusive
    "temperature": (0, 2),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "n": (1, 16),
}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of both routes."""

    model: str
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int | str | list[int]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    min_tokens: int | None = None
    n: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    headrace: RequestHints | None = None

    @property
    def hints(self) -> RequestHints:
        """What a gateway added."""
        return self.headrace or RequestHints()

    @property
    def limit(self) -> int | None:
        """Output tokens asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def choices(self) -> int:
        """Choices of each prompt."""
        return self.n or 1

    @property
    def prompts(self) -> list[str | list[int]]:
        """Of a completion."""
        if not isinstance(self.prompt, list):
            return [self.prompt or ""]
        several = [one for one in self.prompt if not isinstance(one, int)]
        return several or [[one for one in self.prompt if isinstance(one, int)]]

    @property
    def top(self) -> int | None:
        """Likeliest tokens to report with each token; None: nothing is reported."""
        if self.messages is not None:
            return (self.top_logprobs or 0) if self.logprobs else None
        return None if isinstance(self.logprobs, bool) else self.logprobs

    @property
    def usage_asked(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_everywhere(self) -> bool:
        """True if every chunk of a stream has the usage so far."""
        return self.usage_asked and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

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
        path = "prompt" if path.startswith("prompt[") else path
        raise _invalid(path or None, text.partition(" - at")[0]) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _invalid(None, f"the body is not valid JSON: {error}") from error
    field, other = ("messages", "prompt") if chat else ("prompt", "messages")
    if not getattr(body, field):
        raise _invalid(field, "is required and must not be empty")
    if getattr(body, other) is not None:
        raise _invalid(other, "is an unknown field here")
    if not chat and not all(body.prompts):
        raise _invalid("prompt", "must not hold an empty one")
    _check_numbers(body)
    return body


def _check_numbers(body: Body) -> None:
    least = 0 if body.echo else 1
    if body.limit is not None and body.limit < least:
        raise _invalid("max_tokens" if body.max_completion_tokens is None else "max_completion_tokens", "must be >= 1")
    for field, (low, high) in _RANGES.items():
        value = getattr(body, field)
        if value is not None and not low <= value <= high:
            raise _invalid(field, f"must be {low} to {high}")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise _invalid("top_p", "must be above 0 and at most 1")
    if body.repetition_penalty is not None and not 0 < body.repetition_penalty <= 10:
        raise _invalid("repetition_penalty", "must be above 0 and at most 10")
    if body.min_tokens is not None and not 0 <= body.min_tokens <= (
        body.min_tokens if body.limit is None else body.limit
    ):
        raise _invalid("min_tokens", "must be at least 0 and at most the limit of the output")
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "needs stream to be true")


def prompts_tokens(body: Body, tokenizer: ChatTokenizer) -> list[list[int]]:
    """Token ids of each prompt. Raises RequestError."""
    if body.messages is not None:
        rendering = Rendering(
            body.add_generation_prompt is not False, bool(body.continue_final_message), body.chat_template_kwargs or {}
        )
        return [tokenizer.encode_chat(body.messages, rendering)]
    special = body.add_special_tokens is not False
    return [tokenizer.encode_text(one, special=special) if isinstance(one, str) else one for one in body.prompts]


def prompts_text(body: Body, tokenizer: ChatTokenizer) -> list[str]:
    """What an echo answers: the last message's text, or each prompt as text."""
    if body.messages is None:
        return [one if isinstance(one, str) else tokenizer.decode(one) for one in body.prompts]
    content = body.messages[-1].get("content")
    if isinstance(content, list):
        return ["".join(str(part.get("text", "")) for part in content if isinstance(part, dict))]
    return [str(content or "")]
