"""The load: streaming chat requests over plain sockets, one connection each, parsed with as little work as possible.

The client runs on the same CPUs as the server, so what it costs is measured too.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools
import msgspec

DIGEST_CHARACTERS = 24  # of an answer: about six tokens
TIMEOUT_S = 180.0  # of one request


@dataclass(frozen=True)
class Target:
    """How one server wants its requests."""

    port: int
    model: str
    ignore_eos: bool = True
    echo: str = ""  # what stands at the end of the prompt, for a server that may stream the prompt first

    def body(self, message: str, max_tokens: int) -> bytes:
        """A greedy chat request of one user message."""
        fields = {
            "model": self.model,
            "messages": [{"role": "user", "content": message}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Event).decode


@dataclass
class Sample:
    """One request as the client saw it; clock: `time.perf_counter`, s."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)  # of events with text
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""  # kept in memory only
    error: str = ""  # a kind, never a message: servers may quote the prompt in those
    changed: Callable[[], None] | None = None  # called after each event with text, and at the end

    @property
    def ttft(self) -> float:
        """s."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """s between consecutive events with text."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    @property
    def digest(self) -> str:
        """Of the answer's first characters."""
        return hashlib.sha256(self.text[:DIGEST_CHARACTERS].encode()).hexdigest()[:12]

    @property
    def whole_digest(self) -> str:
        """Of the whole answer."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


class _Exchange(asyncio.Protocol):
    """Sends one request when connected, and fills its sample."""

    def __init__(self, request: bytes, sample: Sample, echo: str):
        self.sample = sample
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._echo = echo
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._now = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # what uvloop gives is of no class of asyncio's
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.MsgspecError) as error:
            self._end(type(error).__name__)

    def connection_lost(self, error: Exception | None) -> None:
        self._end("closed early" if error is None else type(error).__name__)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"HTTP {status}")

    def on_body(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                self._event(_decode(line[5:]))

    def on_message_complete(self) -> None:
        self._end("" if self.sample.times else "no text")

    def _event(self, event: _Event) -> None:
        sample = self.sample
        if bytes(event.error) not in (b"", b"null"):
            self._end("error event")
        if event.usage is not None:
            sample.prompt_tokens = event.usage.prompt_tokens
            sample.output_tokens = event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            sample.cached_tokens = (details.cached_tokens or 0) if details else 0
        for choice in event.choices:
            text = choice.delta.content if choice.delta else None
            if text and self._echo and self._echo in text:  # all until here was the prompt
                sample.times.clear()
                sample.text = ""
            elif text:
                sample.times.append(self._now)
                sample.text += text
                if sample.changed is not None:
                    sample.changed()

    def _end(self, error: str) -> None:
        if self.done.done():
            return
        self.sample.error, self.sample.ended = error, time.perf_counter()
        self.done.set_result(None)
        if self.sample.changed is not None:
            self.sample.changed()
        if self._transport is not None:
            self._transport.close()


async def send(target: Target, body: bytes, sample: Sample) -> Sample:
    """One request to its end; `sample` can be watched meanwhile."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    sample.sent = time.perf_counter()
    loop = asyncio.get_running_loop()
    transport = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            transport, exchange = await loop.create_connection(
                lambda: _Exchange(head.encode() + body, sample, target.echo), "127.0.0.1", target.port
            )
            await exchange.done
    except (OSError, TimeoutError) as error:
        sample.error, sample.ended = type(error).__name__, time.perf_counter()
        if transport is not None:
            transport.abort()
    return sample


async def closed_loop(target: Target, bodies: Sequence[bytes], concurrency: int) -> tuple[list[Sample], float]:
    """All requests, `concurrency` at a time, the next one as soon as one ends; samples in their order, and seconds."""
    samples = [Sample() for _ in bodies]
    queue = iter(zip(bodies, samples, strict=True))

    async def worker() -> None:
        for body, sample in queue:
            await send(target, body, sample)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return samples, time.perf_counter() - began
