"""The fields of OpenAI bodies, strictly typed. What is checked beside the types is in `reading`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_wire.chat import Rendering
from headrace_wire.protocol import RequestHints
from headrace_wire.reasons import Reason, RequestError

MAX_BODY = 4 << 20  # bytes
MAX_CHOICES = 64  # of one prompt
MAX_TOTAL_CHOICES = 256  # over all prompts of one request
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 128
MAX_ID_CHARACTERS = 128
MAX_TOP = 20  # likeliest tokens reported with each token
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_REPETITION = 10.0

Role = Literal["system", "developer", "user", "assistant", "tool"]
Prompt = str | list[int]

# Fields that this engine does not act on, with the values that ask for nothing. `best_of` may also be `n`.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "documents": ([],),
    "service_tier": ("auto", "default"),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "spaces_between_special_tokens": (True, False),
}
MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "refusal": (),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
    "annotations": ([],),
}


def invalid(param: str | None, message: str) -> RequestError:
    """The caller's fault, in this field."""
    return RequestError(Reason.INVALID_REQUEST, message if param is None else f"{param}: {message}", param=param)


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Role
    content: str | list[TextPart] | None  # null: of an assistant that said nothing
    name: str | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    annotations: Any = None

    def plain(self) -> dict[str, Any]:
        """What a chat template sees; `developer` is the newer name of `system`, which templates know."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {"role": role, "content": text, **{k: v for k, v in optional.items() if v is not None}}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


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
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None  # false: their names are part of the text
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    headrace: RequestHints | None = None
    # documented as ignored
    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    # see NEUTRAL
    service_tier: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    spaces_between_special_tokens: Any = None

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that bounds the output and its value in tokens."""
        return "max_tokens", self.max_tokens

    @property
    def choices(self) -> int:
        """Choices of each prompt."""
        return self.n or 1

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
    def only_echoes(self) -> bool:
        """True if nothing comes after the prompt."""
        return False

    @property
    def goes_on(self) -> bool:
        """True if the output goes on with a text, so that its first space belongs to it."""
        return False

    @property
    def usage_asked(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_everywhere(self) -> bool:
        """True if every chunk of a stream has the usage so far."""
        return self.usage_asked and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


class ChatBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    parallel_tool_calls: Any = None
    response_format: Any = None
    modalities: Any = None
    documents: Any = None

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

    @property
    def goes_on(self) -> bool:
        """`continue_final_message`."""
        return bool(self.continue_final_message)

    @property
    def rendering(self) -> Rendering:
        """How the messages become a prompt."""
        return rendering_of(self.add_generation_prompt, self.continue_final_message, self.chat_template_kwargs)


class CompletionBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`: `prompt` is one string or list of token ids, or a list of one of the two."""

    prompt: str | list[int | str | list[int]]
    logprobs: bool | int | None = None  # a count; false is absent
    echo: bool | None = None
    add_special_tokens: bool | None = None
    best_of: Any = None
    suffix: Any = None

    @property
    def prompts(self) -> list[Prompt]:
        """One or several; each is a string or a list of token ids once `reading` has checked it."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        several = [one for one in self.prompt if not isinstance(one, int)]
        return several or [[one for one in self.prompt if isinstance(one, int)]]

    @property
    def top(self) -> int | None:
        """`logprobs` is the count."""
        return None if self.logprobs is None or isinstance(self.logprobs, bool) else self.logprobs

    @property
    def echoes(self) -> bool:
        """`echo`."""
        return bool(self.echo)

    @property
    def only_echoes(self) -> bool:
        """`max_tokens` 0."""
        return self.max_tokens == 0

    @property
    def goes_on(self) -> bool:
        """With the prompt."""
        return True


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /tokenize`: `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @property
    def rendering(self) -> Rendering:
        """How the messages become a prompt."""
        return rendering_of(self.add_generation_prompt, self.continue_final_message, self.chat_template_kwargs)


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


def rendering_of(generation: bool | None, continued: bool | None, values: dict[str, Any] | None) -> Rendering:
    """From the fields of a body."""
    return Rendering(generation is not False, bool(continued), values or {})
