"""Bodies from bytes: every error names the field. Numbers are bounded here, so the rest can trust them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headrace_engine.api import schema
from headrace_engine.api.schema import ChatBody, CompletionBody, DetokenizeBody, Generation, TokenizeBody, invalid
from headrace_wire.chat import OWN_VALUES
from headrace_wire.faults import allowed, not_json
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import RequestError

_ID_DIGITS = 10
_PROMPT = "must be one string or list of token ids, or a list of strings or of lists of token ids"

Body = TypeVar("Body", ChatBody, CompletionBody)
Read = TypeVar("Read", ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def read_chat(data: bytes) -> ChatBody:
    """Raises RequestError naming the field."""
    body = _decode(_CHAT, data)
    _check_messages(body.messages)
    _check_rendering(body)
    if body.top_logprobs is not None:
        _between("top_logprobs", body.top_logprobs, 0, schema.MAX_TOP)
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "needs logprobs to be true")
    return _checked(body)


def read_completion(data: bytes) -> CompletionBody:
    """Raises RequestError naming the field."""
    body = _decode(_COMPLETION, data)
    _check_prompts(body)
    if body.logprobs is True:
        raise invalid("logprobs", f"must be 0 to {schema.MAX_TOP}")
    _between("logprobs", body.top, 0, schema.MAX_TOP)
    return _checked(body)


def read_tokenize(data: bytes) -> TokenizeBody:
    """Raises RequestError naming the field."""
    body = _decode(_TOKENIZE, data)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "one of prompt and messages is required")
    if body.messages is not None:
        _check_messages(body.messages)
        _check_rendering(body)
    return body


def read_detokenize(data: bytes) -> DetokenizeBody:
    """Raises RequestError naming the field."""
    return _decode(_DETOKENIZE, data)


def _decode(decoder: msgspec.json.Decoder[Read], data: bytes) -> Read:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _named(str(error), decoder.type) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid(None, not_json(error, data)) from error


def _named(text: str, kind: object) -> RequestError:
    """The error of a decoder of `kind` that says ``Expected `int`, got `str` - at `$.n` `` as one that names `n`."""
    message, _, path = text.partition(" - at `$")
    path = path.rstrip("`").lstrip(".").removesuffix("[...]")  # a value of an object: its field is named
    for phrase, short in (("unknown field `", "is an unknown field"), ("required field `", "is required")):
        if phrase in message:
            name = message.partition(phrase)[2].rstrip("`")
            return invalid(f"{path}.{name}" if path else name, short)
    if re.fullmatch(r"prompt(\[\d+\])*", path):
        return invalid("prompt", _PROMPT)
    values = allowed(kind, path) if "enum value" in message else ""
    told = message[:1].lower() + message[1:] if path else message
    return invalid(path or None, f"{told}; write {values}" if values else told)


def _check_prompts(body: CompletionBody) -> None:
    if not body.prompt:
        raise invalid("prompt", "must not be empty")
    if isinstance(body.prompt, list) and len(set(map(type, body.prompt))) > 1:
        raise invalid("prompt", _PROMPT)
    prompts = body.prompts
    if not all(prompts):
        raise invalid("prompt", "must not be empty, nor hold an empty one")
    _between("n", body.choices, 1, schema.MAX_CHOICES)
    if len(prompts) * body.choices > schema.MAX_TOTAL_CHOICES:
        raise invalid("prompt", f"at most {schema.MAX_TOTAL_CHOICES} choices over all prompts")


def _check_messages(messages: Sequence[schema.Message]) -> None:
    if not messages:
        raise invalid("messages", "must not be empty")
    for index, message in enumerate(messages):
        _check_neutral(message, schema.MESSAGE_NEUTRAL, f"messages[{index}].")
        if message.content is None and message.role != "assistant":
            raise invalid(f"messages[{index}].content", "must be text or text parts")


def _check_rendering(body: ChatBody | TokenizeBody) -> None:
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message", "is not for a prompt with add_generation_prompt")
    taken = OWN_VALUES.intersection(body.chat_template_kwargs or {})
    if taken:
        raise invalid(f"chat_template_kwargs.{min(taken)}", "is set by the engine")


def _check_neutral(body: msgspec.Struct, table: dict[str, tuple[Any, ...]], prefix: str = "") -> None:
    for field, values in table.items():
        value = getattr(body, field, None)
        if value is not None and not any(_same(value, neutral) for neutral in values):
            raise invalid(prefix + field, "is not supported by this engine; leave it out")


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: to Python, true equals 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _between(field: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise invalid(field, f"must be {low:g} to {high:g}")


def _checked(body: Body) -> Body:
    table = schema.NEUTRAL
    if isinstance(body, CompletionBody):
        table = {**table, "best_of": (1, body.choices)}
    _check_neutral(body, table)
    _check_limits(body)
    _between("temperature", body.temperature, 0, 2)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise invalid("top_p", "must be above 0 and at most 1")
    if body.top_k is not None and body.top_k < -1:
        raise invalid("top_k", "must be at least 1, or 0 or -1 for no limit")
    _check_penalties(body)
    if body.seed is not None and not -(1 << 63) <= body.seed < 1 << 64:
        raise invalid("seed", "must fit in 64 bits")
    _check_stops(body)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "needs stream to be true")
    _check_hints(body.headrace or RequestHints())
    return body


def _check_limits(body: Generation) -> None:
    field, limit = body.limit
    if limit is not None and limit < 1 and not (limit == 0 and body.echoes):
        raise invalid(field, "must be at least 1")
    if body.min_tokens is not None and not 0 <= body.min_tokens <= (body.min_tokens if limit is None else limit):
        raise invalid("min_tokens", "must be at least 0 and at most the limit of the output")
    _between("n", body.n, 1, schema.MAX_CHOICES)
    if body.cache_salt is not None and not 0 < len(body.cache_salt) <= schema.MAX_STOP_CHARACTERS:
        raise invalid("cache_salt", f"has 1 to {schema.MAX_STOP_CHARACTERS} characters")


def _check_penalties(body: Generation) -> None:
    _between("min_p", body.min_p, 0, 1)
    _between("presence_penalty", body.presence_penalty, -2, 2)
    _between("frequency_penalty", body.frequency_penalty, -2, 2)
    if body.repetition_penalty is not None and not 0 < body.repetition_penalty <= schema.MAX_REPETITION:
        raise invalid("repetition_penalty", f"must be above 0 and at most {schema.MAX_REPETITION:g}")
    biases = body.logit_bias or {}
    if len(biases) > schema.MAX_BIASES:
        raise invalid("logit_bias", f"at most {schema.MAX_BIASES} tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _ID_DIGITS):
            raise invalid("logit_bias", "its keys are token ids in decimal digits")
        _between("logit_bias", bias, -schema.MAX_BIAS, schema.MAX_BIAS)


def _check_stops(body: Generation) -> None:
    if len(body.stops) > schema.MAX_STOPS:
        raise invalid("stop", f"at most {schema.MAX_STOPS} stop strings")
    if not all(0 < len(stop) <= schema.MAX_STOP_CHARACTERS for stop in body.stops):
        raise invalid("stop", f"each stop string has 1 to {schema.MAX_STOP_CHARACTERS} characters")
    if len(body.stop_token_ids or ()) > schema.MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"at most {schema.MAX_STOP_IDS} ids")


def _check_hints(hints: RequestHints) -> None:
    longest = schema.MAX_ID_CHARACTERS
    if len(hints.id) > longest or len(hints.holder) > longest:
        raise invalid("headrace.id" if len(hints.id) > longest else "headrace.holder", "is too long")
    if not -(1 << 31) <= hints.priority < 1 << 31:
        raise invalid("headrace.priority", "must fit in 32 bits")
    for field in ("ttft_ms", "tpot_ms", "left_ms"):
        _between(f"headrace.{field}", getattr(hints, field), 0, 1e12)
    try:
        salt = bytes.fromhex(hints.salt)
    except ValueError as error:
        raise invalid("headrace.salt", "must be hex") from error
    if len(salt) > longest:
        raise invalid("headrace.salt", "is too long")
