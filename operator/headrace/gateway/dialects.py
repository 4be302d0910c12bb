"""The body that an engine gets: written anew from what was understood, per runtime. One runtime so far: headrace."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.gateway.body import Body, ChatBody
from headrace_wire.protocol import RequestHints

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
MODELS_PATH = "/v1/models"

_ENCODER = msgspec.json.Encoder()
_SAMPLING: tuple[str, ...] = (  # forwarded as they came; what a client leaves out is the model's own
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
_CHAT_ONLY: tuple[str, ...] = (
    "top_logprobs",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)
_COMPLETION_ONLY: tuple[str, ...] = ("echo", "add_special_tokens")


def path_of(body: Body) -> str:
    """The engine's path for this body."""
    return CHAT_PATH if isinstance(body, ChatBody) else COMPLETION_PATH


class HeadraceDialect:
    """Bodies for Headrace's own engine: always a stream with usage, our limit, our hints."""

    def __init__(self, body: Body):
        self._path = path_of(body)
        fields: dict[str, Any] = {"model": body.model, "stream": True, "stream_options": {"include_usage": True}}
        if isinstance(body, ChatBody):
            fields["messages"] = [message.plain() for message in body.messages]
            names = _SAMPLING + _CHAT_ONLY
        else:
            fields["prompt"] = body.prompt
            names = _SAMPLING + _COMPLETION_ONLY
        for name in names:
            value = getattr(body, name)
            if value is not None:
                fields[name] = value
        if body.n is not None and body.n > 1:
            fields["n"] = body.n
        self._fields = fields

    def encode(self, host: str, output_limit: int, hints: RequestHints) -> bytes:
        """The whole HTTP/1.1 request for the engine at `host` (host:port)."""
        data = _ENCODER.encode({**self._fields, "max_tokens": output_limit, "headrace": hints})
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\naccept: text/event-stream\r\n\r\n"
        )
        return head.encode() + data
