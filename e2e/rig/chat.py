"""A small OpenAI client that times what it streams, on the standard library so that it runs anywhere."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Answer:
    """What came back. `ended` is True for a stream that finished with [DONE] or a whole JSON body."""

    status: int = 0  # HTTP; 0 = no answer at all
    text: str = ""
    error: dict[str, Any] | None = None  # the OpenAI-style error object, also of an error event in a stream
    ended: bool = False
    finish_reason: str | None = None
    ttft_s: float | None = None  # first event with text
    total_s: float = 0.0
    tokens: int = 0  # completion tokens, from usage
    headers: dict[str, str] = field(default_factory=dict)
    broken: str | None = None  # the connection ended without an answer: how

    @property
    def ok(self) -> bool:
        """Answered completely."""
        return self.status == 200 and self.ended and self.error is None

    @property
    def explained(self) -> bool:
        """Answered, or refused or ended with an explicit error: nothing was lost silently."""
        return self.ok or (self.error is not None and bool(self.error.get("code")))


@dataclass(frozen=True)
class Endpoint:
    """Where to call, and as whom."""

    url: str  # http://host:port
    key: str | None

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A new connection."""
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout)


def chat(
    endpoint: Endpoint,
    body: dict[str, Any],
    *,
    headers: dict[str, str] | None = None,
    on_text: Callable[[str], None] | None = None,
    timeout: float = 120.0,
) -> Answer:
    """POST a chat request, streamed if `body["stream"]`; never raises for what the server or the network does."""
    answer = Answer()
    began = time.monotonic()
    sent = {"content-type": "application/json", **(headers or {})}
    if endpoint.key is not None:
        sent["authorization"] = f"Bearer {endpoint.key}"
    connection = endpoint.connection(timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), sent)
        response = connection.getresponse()
        answer.status = response.status
        answer.headers = {k.lower(): v for k, v in response.getheaders()}
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            _read_stream(response, answer, began, on_text)
        else:
            _read_json(response.read(), answer)
    except (OSError, http.client.HTTPException) as error:
        answer.broken = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
        answer.total_s = time.monotonic() - began
    return answer


def _read_json(raw: bytes, answer: Answer) -> None:
    document = json.loads(raw)
    answer.error = document.get("error")
    if answer.error is None:
        choice = document["choices"][0]
        answer.text, answer.finish_reason = choice["message"]["content"], choice["finish_reason"]
        answer.tokens = document["usage"]["completion_tokens"]
    answer.ended = True


def _read_stream(
    response: http.client.HTTPResponse, answer: Answer, began: float, on_text: Callable[[str], None] | None
) -> None:
    for raw in response:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            answer.ended = True
            continue
        event = json.loads(data)
        if "error" in event:
            answer.error = event["error"]
            continue
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", ()):
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            text = choice.get("delta", {}).get("content") or ""
            if text:
                answer.ttft_s = answer.ttft_s if answer.ttft_s is not None else time.monotonic() - began
                answer.text += text
                if on_text is not None:
                    on_text(text)


def question(model: str, text: str, **fields: Any) -> dict[str, Any]:
    """The body of a streamed one-message chat at temperature 0 that asks for usage."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        **fields,
    }
