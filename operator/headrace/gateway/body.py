"""OpenAI bodies, decoded by allow-list: a field that is not acted on is refused by name or stands in IGNORED.

What a client sends is never forwarded as it came: `dialects` writes a new body from what was understood.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from headrace_wire.reasons import Reason, RequestError

IGNORED = (  # accepted, never acted on, never forwarded
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "cache_salt",
    "priority",
    "headrace",
)
MAX_CHOICES = 16
MAX_STOPS = 4

T = TypeVar("T")
Anything = msgspec.Raw
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
OutputLimit = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
StopList = Annotated[list[StopText], msgspec.Meta(max_length=MAX_STOPS)]
ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
EmptyList = Annotated[list[Anything], msgspec.Meta(max_length=0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Repetition = Annotated[float, msgspec.Meta(gt=0, le=10)]
TokenText = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,10}$")]  # a token id
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Biases = Annotated[dict[TokenText, Bias], msgspec.Meta(max_length=1024)]
StopIds = Annotated[list[TokenId], msgspec.Meta(max_length=128)]
LeastOutput = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=20)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`; an empty object asks for nothing."""

    include_usage: bool | None = None


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A content part; only text is understood."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a chat. The last five fields stand in answers that clients send back, empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    tool_calls: EmptyList | None = None
    annotations: EmptyList | None = None
    function_call: None = None
    audio: None = None

    def plain(self) -> dict[str, str]:
        """What template and engine see: text parts joined."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        plain = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.name is not None:
            plain["name"] = self.name
        return plain


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """`response_format`; only plain text is understood."""

    type: Literal["text"]


class Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What chat and plain completions share."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputLimit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: StopText | StopList | None = None
    ignore_eos: bool | None = None
    stop_token_ids: StopIds | None = None
    min_tokens: LeastOutput | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Biases | None = None
    # ignored:
    user: Anything = Anything()
    metadata: Anything = Anything()
    store: Anything = Anything()
    service_tier: Anything = Anything()
    safety_identifier: Anything = Anything()
    prompt_cache_key: Anything = Anything()
    parallel_tool_calls: Anything = Anything()
    cache_salt: Anything = Anything()
    priority: Anything = Anything()
    headrace: Anything = Anything()

    @property
    def streams(self) -> bool:
        """The client wants server-sent events."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """The client wants the usage chunk of a stream."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        """Number of answers."""
        return self.n or 1


class ChatBody(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: OutputLimit | None = None
    prompt_field: ClassVar[str] = "messages"  # what an error of the prompt names
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    # accepted with the value that changes nothing:
    tools: list[Anything] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None

    @property
    def output_limit(self) -> int | None:
        """The client's limit of output tokens of one choice, or None."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionBody(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt_field: ClassVar[str] = "prompt"
    prompt: Annotated[str, msgspec.Meta(min_length=1)] | Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Alternatives | bool | None = None
    # accepted with the value that changes nothing:
    suffix: str | None = None
    best_of: int | None = None

    @property
    def output_limit(self) -> int | None:
        """The client's limit of output tokens of one choice, or None."""
        return self.max_tokens


Body = ChatBody | CompletionBody

_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "suffix": (None, ""),
    "best_of": (None, 1),
}


def decode_chat(data: bytes | bytearray) -> ChatBody:
    """The body of a chat request. Raises RequestError INVALID_REQUEST with the field as param."""
    body = _decode(_CHAT, data)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise _invalid("max_completion_tokens", "differs from max_tokens; send one of them")
    if body.tool_choice is not None and body.tool_choice != "none" and not body.tools:
        raise _invalid("tool_choice", "needs tools, which are not supported")
    if body.top_logprobs and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    _check(body)
    return body


def decode_completion(data: bytes | bytearray) -> CompletionBody:
    """The body of a plain completion. Raises RequestError INVALID_REQUEST with the field as param."""
    body = _decode(_COMPLETION, data)
    if body.logprobs is True:
        raise _invalid("logprobs", "expected a number of alternatives, 0 to 20")
    if body.logprobs is False:
        body.logprobs = None
    if body.echo and body.logprobs is not None:
        raise _invalid("echo", "cannot be combined with logprobs")
    _check(body)
    return body


def _check(body: Body) -> None:
    for field, allowed in _NEUTRAL.items():
        if getattr(body, field, None) not in allowed:
            raise _invalid(field, "is not supported")
    if body.min_tokens and body.output_limit is not None and body.min_tokens > body.output_limit:
        raise _invalid("min_tokens", f"is {body.min_tokens}, above the output limit of {body.output_limit}")
    if body.stream_options is not None and not body.streams:
        raise _invalid("stream_options", "needs stream: true")


def _invalid(field: str, message: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, f"{field}: {message}", param=field)


_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_MISSING = re.compile(r"missing required field `(.*)`")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | bytearray) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(Reason.INVALID_REQUEST, f"the body is not valid JSON: {str(error)[:200]}") from error


def _explain(text: str) -> RequestError:
    """msgspec's sentence with the path of the field first."""
    found = _PATH.search(text)
    path, sentence = (found[1], text[: found.start()]) if found else ("", text)
    for pattern, words in ((_UNKNOWN, "is not supported"), (_MISSING, "is missing")):
        if named := pattern.search(sentence):
            path = f"{path}.{named[1]}" if path else named[1]
            sentence = words
    if not path:
        return RequestError(Reason.INVALID_REQUEST, f"the body: {sentence[:300]}")
    return _invalid(path[:200], sentence[0].lower() + sentence[1:300])
