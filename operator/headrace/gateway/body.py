"""OpenAI bodies, decoded by allow-list: a field that is not acted on is refused by name or stands in IGNORED.

What a client sends is never forwarded as it came: `dialects` writes a new body from what was understood.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from headrace_wire.chat import OWN_VALUES, Rendering
from headrace_wire.faults import allowed, not_json
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
MAX_CHOICES = 16  # of one prompt
MAX_TOTAL_CHOICES = 64  # over all prompts of one request
MAX_STOPS = 16

T = TypeVar("T")
Anything = msgspec.Raw
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
Seed = int  # 64 bits, signed or not
Choices = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)]
OutputLimit = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
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
Text = Annotated[str, msgspec.Meta(min_length=1)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
Prompts = Annotated[list[TokenId | Text | TokenIds], msgspec.Meta(min_length=1)]  # of one kind


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
    tool_call_id: str | None = None
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
        if self.tool_call_id is not None:
            plain["tool_call_id"] = self.tool_call_id
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
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    # accepted with the value that changes nothing:
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    spaces_between_special_tokens: bool | None = None
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
    def prompt_count(self) -> int:
        """Number of prompts."""
        return 1

    @property
    def choices(self) -> int:
        """Number of answers, over all prompts."""
        return (self.n or 1) * self.prompt_count

    @property
    def output_limit(self) -> int | None:
        """The client's limit of output tokens of one choice, or None."""
        return self.max_tokens

    @property
    def only_echoes(self) -> bool:
        """Nothing comes after the prompt."""
        return False


class ChatBody(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: OutputLimit | None = None
    prompt_field: ClassVar[str] = "messages"  # what an error of the prompt names
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # accepted with the value that changes nothing:
    tools: list[Anything] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: list[Anything] | None = None
    function_call: Literal["none", "auto"] | None = None
    documents: list[Anything] | None = None
    modalities: list[str] | None = None
    response_format: TextFormat | None = None

    @property
    def output_limit(self) -> int | None:
        """The client's limit of output tokens of one choice, or None."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def rendering(self) -> Rendering:
        """How the messages become a prompt."""
        generation, values = self.add_generation_prompt is not False, self.chat_template_kwargs or {}
        return Rendering(generation, bool(self.continue_final_message), values)


class CompletionBody(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt_field: ClassVar[str] = "prompt"
    prompt: Text | Prompts
    echo: bool | None = None
    logprobs: Alternatives | bool | None = None
    add_special_tokens: bool | None = None
    # accepted with the value that changes nothing:
    suffix: str | None = None
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several; each is text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        several = [one for one in self.prompt if not isinstance(one, int)]
        return several or [[one for one in self.prompt if isinstance(one, int)]]

    @property
    def prompt_count(self) -> int:
        """Number of prompts."""
        return 1 if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else len(self.prompt)

    @property
    def only_echoes(self) -> bool:
        """Nothing comes after the prompt."""
        return bool(self.echo) and self.max_tokens == 0


Body = ChatBody | CompletionBody

_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "documents": (None, []),
    "modalities": (None, ["text"]),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1),
    "suffix": (None, ""),
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
    if body.continue_final_message and body.add_generation_prompt:
        raise _invalid("continue_final_message", "is not for a prompt with add_generation_prompt")
    taken = OWN_VALUES.intersection(body.chat_template_kwargs or ())
    if taken:
        raise _invalid(f"chat_template_kwargs.{min(taken)}", "is set from the other fields")
    _check(body)
    return body


def decode_completion(data: bytes | bytearray) -> CompletionBody:
    """The body of a plain completion. Raises RequestError INVALID_REQUEST with the field as param."""
    body = _decode(_COMPLETION, data)
    if body.logprobs is True:
        raise _invalid("logprobs", "expected a number of alternatives, 0 to 20")
    if body.logprobs is False:
        body.logprobs = None
    if len(set(map(type, body.prompt))) > 1:
        raise _invalid("prompt", "must be one text or list of token ids, or a list of texts or of lists of token ids")
    if body.choices > MAX_TOTAL_CHOICES:
        raise _invalid("prompt", f"at most {MAX_TOTAL_CHOICES} choices over all prompts")
    if body.best_of not in (None, 1, body.n or 1):
        raise _invalid("best_of", "is not supported")
    _check(body)
    return body


def _check(body: Body) -> None:
    for field, neutral in _NEUTRAL.items():
        if getattr(body, field, None) not in neutral:
            raise _invalid(field, "is not supported")
    if body.output_limit == 0 and not body.only_echoes:
        field = "max_completion_tokens" if getattr(body, "max_completion_tokens", None) == 0 else "max_tokens"
        raise _invalid(field, "expected a number >= 1; 0 is for a prompt that is only echoed")
    if body.seed is not None and not -(1 << 63) <= body.seed < 1 << 64:
        raise _invalid("seed", "must fit in 64 bits: <= 2^64 - 1")
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
        raise _explain(str(error), decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(Reason.INVALID_REQUEST, not_json(error, data)) from error


def _explain(text: str, kind: object) -> RequestError:
    """msgspec's sentence with the path of the field first; `kind`: what was to be read."""
    found = _PATH.search(text)
    path, sentence = (found[1], text[: found.start()]) if found else ("", text)
    for pattern, words in ((_UNKNOWN, "is not supported"), (_MISSING, "is missing")):
        if named := pattern.search(sentence):
            path = f"{path}.{named[1]}" if path else named[1]
            sentence = words
    if not path:
        return RequestError(Reason.INVALID_REQUEST, f"the body: {sentence[:300]}")
    values = allowed(kind, path) if "enum value" in sentence else ""
    return _invalid(path[:200], sentence[0].lower() + sentence[1:300] + (f"; write {values}" if values else ""))
