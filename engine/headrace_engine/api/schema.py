"""OpenAI bodies, strictly typed: every error names the field. Numbers are bounded here, so the rest can trust them."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError

MAX_BODY = 4 << 20  # bytes
MAX_CHOICES = 64
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 128
MAX_ID_CHARACTERS = 128
MAX_TOP = 20  # likeliest tokens reported with each token
MAX_BIASES = 1024
_ID_DIGITS = 10
MAX_BIAS = 100.0
MAX_REPETITION = 10.0

Role = Literal["system", "user", "assistant", "tool"]

# Fields of the OpenAI API that this engine does not act on, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
}
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "refusal": (),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
    "annotations": ([],),
}


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Role
    content: str | list[TextPart]
    name: str | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    annotations: Any = None

    def plain(self) -> dict[str, Any]:
        """What a chat template sees."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {"role": self.role, "content": text, **{k: v for k, v in optional.items() if v is not None}}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of both routes. `null` is the same as absent."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    headrace: RequestHints | None = None
    # documented as ignored
    user: Any = None
    metadata: Any = None
    store: Any = None
    # see NEUTRAL
    service_tier: Any = None

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that bounds the output and its value in tokens."""
        return "max_tokens", self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def top(self) -> int | None:
        """Likeliest tokens to report with each token of output; None: nothing is reported."""
        return None

    @property
    def echoes(self) -> bool:
        """True if the prompt comes before the output."""
        return False

    @property
    def usage_asked(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    response_format: Any = None

    @property
    def limit(self) -> tuple[str, int | None]:
        """`max_completion_tokens` wins over its older name."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def top(self) -> int | None:
        """`top_logprobs` where `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`: `prompt` is one string or one list of token ids."""

    prompt: Any
    logprobs: bool | int | None = None  # a count; false is absent
    echo: bool | None = None
    best_of: Any = None
    suffix: Any = None

    @property
    def top(self) -> int | None:
        """`logprobs` is the count."""
        return None if self.logprobs is None or isinstance(self.logprobs, bool) else self.logprobs

    @property
    def echoes(self) -> bool:
        """`echo`."""
        return bool(self.echo)


Body = TypeVar("Body", ChatBody, CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)


def invalid(param: str | None, message: str) -> RequestError:
    """The caller's fault, in this field."""
    return RequestError(Reason.INVALID_REQUEST, message if param is None else f"{param}: {message}", param=param)


def read_chat(data: bytes) -> ChatBody:
    """Raises RequestError naming the field."""
    body = _decode(_CHAT, data)
    if not body.messages:
        raise invalid("messages", "must not be empty")
    for index, message in enumerate(body.messages):
        _check_neutral(message, MESSAGE_NEUTRAL, f"messages[{index}].")
    if body.top_logprobs is not None:
        _between("top_logprobs", body.top_logprobs, 0, MAX_TOP)
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "needs logprobs to be true")
    return _checked(body)


def read_completion(data: bytes) -> CompletionBody:
    """Raises RequestError naming the field."""
    body = _decode(_COMPLETION, data)
    prompt = body.prompt
    ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not isinstance(prompt, str) and not ids:
        raise invalid("prompt", "must be one string or one list of token ids; send several prompts one by one")
    if not prompt:
        raise invalid("prompt", "must not be empty")
    if body.logprobs is True:
        raise invalid("logprobs", f"must be 0 to {MAX_TOP}")
    _between("logprobs", body.top, 0, MAX_TOP)
    if body.echoes and body.top is not None:
        raise invalid("logprobs", "is not supported together with echo")
    return _checked(body)


def _decode(decoder: msgspec.json.Decoder[Body], data: bytes) -> Body:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from error
    except RecursionError as error:
        raise invalid(None, "the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(None, f"the body is not valid JSON: {error}") from error


def _named(text: str) -> RequestError:
    """The error of a decoder that says ``Expected `int`, got `str` - at `$.n` `` as one that names `n`."""
    message, _, path = text.partition(" - at `$")
    path = path.rstrip("`").lstrip(".").removesuffix("[...]")  # a value of an object: its field is named
    for phrase, short in (("unknown field `", "is an unknown field"), ("required field `", "is required")):
        if phrase in message:
            name = message.partition(phrase)[2].rstrip("`")
            return invalid(f"{path}.{name}" if path else name, short)
    return invalid(path or None, message[:1].lower() + message[1:] if path else message)


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
    _check_neutral(body, NEUTRAL)
    field, limit = body.limit
    if limit is not None and limit < 1:
        raise invalid(field, "must be at least 1")
    _between("temperature", body.temperature, 0, 2)
    _between("n", body.n, 1, MAX_CHOICES)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise invalid("top_p", "must be above 0 and at most 1")
    if body.top_k is not None and body.top_k < -1:
        raise invalid("top_k", "must be at least 1, or 0 or -1 for no limit")
    _check_penalties(body)
    if body.min_tokens is not None and not 0 <= body.min_tokens <= (limit or body.min_tokens):
        raise invalid("min_tokens", "must be at least 0 and at most the limit of the output")
    if body.seed is not None and not -(1 << 63) <= body.seed < 1 << 64:
        raise invalid("seed", "must fit in 64 bits")
    _check_stops(body)
    _check_hints(body.headrace or RequestHints())
    return body


def _check_penalties(body: Generation) -> None:
    _between("min_p", body.min_p, 0, 1)
    _between("presence_penalty", body.presence_penalty, -2, 2)
    _between("frequency_penalty", body.frequency_penalty, -2, 2)
    if body.repetition_penalty is not None and not 0 < body.repetition_penalty <= MAX_REPETITION:
        raise invalid("repetition_penalty", f"must be above 0 and at most {MAX_REPETITION:g}")
    biases = body.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise invalid("logit_bias", f"at most {MAX_BIASES} tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _ID_DIGITS):
            raise invalid("logit_bias", "its keys are token ids in decimal digits")
        _between("logit_bias", bias, -MAX_BIAS, MAX_BIAS)


def _check_stops(body: Generation) -> None:
    if len(body.stops) > MAX_STOPS:
        raise invalid("stop", f"at most {MAX_STOPS} stop strings")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in body.stops):
        raise invalid("stop", f"each stop string has 1 to {MAX_STOP_CHARACTERS} characters")
    if len(body.stop_token_ids or ()) > MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_IDS} ids")


def _check_hints(hints: RequestHints) -> None:
    if len(hints.id) > MAX_ID_CHARACTERS or len(hints.holder) > MAX_ID_CHARACTERS:
        raise invalid("headrace.id" if len(hints.id) > MAX_ID_CHARACTERS else "headrace.holder", "is too long")
    if not -(1 << 31) <= hints.priority < 1 << 31:
        raise invalid("headrace.priority", "must fit in 32 bits")
    for field in ("ttft_ms", "tpot_ms", "left_ms"):
        _between(f"headrace.{field}", getattr(hints, field), 0, 1e12)
    try:
        salt = bytes.fromhex(hints.salt)
    except ValueError as error:
        raise invalid("headrace.salt", "must be hex") from error
    if len(salt) > MAX_ID_CHARACTERS:
        raise invalid("headrace.salt", "is too long")
