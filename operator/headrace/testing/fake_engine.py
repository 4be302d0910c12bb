"""An engine that speaks engine/PROTOCOL.md over real HTTP on loopback, computes nothing, and fails on demand.

async with FakeEngine(model="m", max_sequences=2, tokens_per_s=50) as engine:
    await client.post(engine.url + "/v1/chat/completions", json={...})
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import msgspec

from headrace.testing.fake_answer import Answer, Asked, Choice, Told
from headrace.testing.fake_bodies import Body, prompts_text, read_body
from headrace.testing.fake_choices import Speaker
from headrace.testing.fake_scheduler import CACHE_ROOT, Scheduler, Sequence, Speed
from headrace.testing.loopback import LoopbackServer, Request, Responder
from headrace.testing.tiny_tokenizer import tiny_bundle
from headrace_wire.chat import ChatTokenizer
from headrace_wire.protocol import EngineState, KvGroup, ModelInfo, StepTimes, TokenizerBundle
from headrace_wire.reasons import Reason, RequestError

Answers = Mapping[str, str] | Callable[[str], str]
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class Fault(str, Enum):
    """What goes wrong with one generation request."""

    CLOSE_BEFORE_FIRST_BYTE = "close-before-first-byte"
    HANG = "hang"  # no response head, ever
    REFUSE = "refuse"  # 500 before anything was generated
    DRAINING = "draining"  # 503
    ERROR_MID_STREAM = "error-mid-stream"  # an error event, then close without [DONE]
    CLOSE_MID_STREAM = "close-mid-stream"  # the connection breaks
    HANG_MID_STREAM = "hang-mid-stream"  # no more bytes


@dataclass(frozen=True)
class Injection:
    """A fault and, for those in the middle of a stream, the tokens sent before it."""

    fault: Fault
    after_tokens: int = 2


@dataclass(frozen=True)
class Seen:
    """A generation request as it arrived."""

    path: str
    headers: dict[str, str]
    raw: dict[str, Any]
    body: Body


@dataclass(frozen=True)
class Settings:
    """What a FakeEngine pretends to be."""

    model: str = "m"
    max_sequences: int = 2
    max_tokens: int = 2048  # context: prompt + output
    total_pages: int = 256
    instance: str = "fake-0"
    port: int = 0  # 0: any free one


class FakeEngine:
    """Use as an async context manager; `url` is its base. Keyword arguments are fields of Settings and Speed."""

    def __init__(
        self, *, answers: Answers | None = None, bundle: TokenizerBundle | None = None, **settings: Any
    ) -> None:
        names = {field.name for field in dataclasses.fields(Speed)}
        self.speed = Speed(**{key: value for key, value in settings.items() if key in names})
        self.settings = Settings(**{key: value for key, value in settings.items() if key not in names})
        self.tokenizer = ChatTokenizer(bundle or tiny_bundle())
        self.answers = answers
        self.scheduler = Scheduler(self.settings.max_sequences, self.settings.total_pages, self.speed)
        self._speaker = Speaker(self.tokenizer, self.scheduler, self.settings.max_tokens, self._reply)
        self.seen: list[Seen] = []
        self.cancelled = 0  # requests whose client left before the end
        self.draining = False
        self.ready = True
        self.healthy = True
        self.state_polls = 0
        self.freeze_state = False  # the state route no longer answers
        self._faults: list[Injection] = []
        self._ids = itertools.count(1)
        self._seq = 0
        self._outcomes: Counter[str] = Counter()
        self._server = LoopbackServer(self._handle, self.settings.port)

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def model(self) -> ModelInfo:
        """What it says it serves."""
        return ModelInfo(
            name=self.settings.model,
            architecture="LlamaForCausalLM",
            tokenizer=self.tokenizer.digest,
            max_tokens=self.settings.max_tokens,
            max_sequences=self.settings.max_sequences,
            max_batch_tokens=512,
            dtype="float32",
            kv_dtype="float32",
        )

    async def start(self) -> Self:
        """Listens."""
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Breaks every connection and stops listening, as a killed pod would."""
        await self._server.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def inject(self, fault: Fault, *, after_tokens: int = 2, times: int = 1) -> None:
        """The next `times` generation requests meet this fault."""
        self._faults += [Injection(fault, after_tokens)] * times

    def state(self) -> EngineState:
        """The report that `/headrace/v1/state` gives now."""
        now, scheduler = asyncio.get_running_loop().time(), self.scheduler
        self._seq += 1
        return EngineState(
            engine="fake",
            instance=self.settings.instance,
            seq=self._seq,
            model=self.model,
            cache_root=CACHE_ROOT,
            kv_groups=[KvGroup(layers=2, bytes_per_token=1024)],
            total=scheduler.total,
            free=scheduler.total - scheduler.used - scheduler.evictable,
            evictable=scheduler.evictable,
            holders=scheduler.holders(),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            queued_tokens=scheduler.queued_tokens,
            oldest_waiting_s=scheduler.oldest_waiting_s(now),
            prefill_rate=min(self.speed.prefill_tokens_per_s, 1e9),
            draining=self.draining,
            step_times=StepTimes(
                fixed_s=1 / self.speed.tokens_per_s, prefill_token_s=1 / self.speed.prefill_tokens_per_s, steps=8
            ),
        )

    async def _handle(self, request: Request, responder: Responder) -> None:
        path = request.path.partition("?")[0]
        try:
            if path in ("/v1/chat/completions", "/v1/completions"):
                self._expect(request, "POST")
                await self._generate(request, responder, chat=path == "/v1/chat/completions")
            else:
                await self._read_only(path, request, responder)
        except RequestError as error:
            self._outcomes[error.reason.value] += 1
            if responder.started:
                await responder.send(b"data: " + msgspec.json.encode(error.body()) + b"\n\n")
                await responder.end()
                return
            retry = {} if error.retry_after is None else {"retry-after": str(math.ceil(error.retry_after))}
            await responder.json(error.reason.status, error.body(), retry)

    def _expect(self, request: Request, method: str) -> None:
        if request.method != method:
            raise RequestError(Reason.METHOD_NOT_ALLOWED, f"use {method} here")

    async def _read_only(self, path: str, request: Request, responder: Responder) -> None:
        state, serving = self.state(), self.ready and not self.draining
        if path == "/headrace/v1/state" and self.freeze_state:
            await asyncio.Event().wait()
        info = {"model": msgspec.to_builtins(self.model), "shape": {}, "memory": {}, "total_pages": state.total}
        pages: dict[str, tuple[int, Any]] = {
            "/health": (200 if self.healthy else 503, {"status": "ok" if self.healthy else "failed"}),
            "/ready": (200 if serving else 503, {"status": "ready" if serving else "draining"}),
            "/headrace/v1/state": (200, msgspec.to_builtins(state)),
            "/headrace/v1/info": (200, info),
            "/headrace/v1/tokenizer": (200, msgspec.to_builtins(self.tokenizer.bundle)),
            "/v1/models": (200, {"object": "list", "data": [self._listing()]}),
        }
        self.state_polls += path == "/headrace/v1/state"
        if path == "/metrics":
            self._expect(request, "GET")
            await responder.whole(200, self._metrics(state), {"content-type": "text/plain; version=0.0.4"})
            return
        if path not in pages:
            raise RequestError(Reason.NOT_FOUND, f"there is no {path}")
        self._expect(request, "GET")
        await responder.json(*pages[path])

    def _listing(self) -> dict[str, Any]:
        limit = self.settings.max_tokens
        return {
            "id": self.settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "headrace",
            "max_model_len": limit,
        }

    def _metrics(self, state: EngineState) -> bytes:
        lines = [
            f"headrace_engine_running {state.running}",
            f"headrace_engine_waiting {state.waiting}",
            *(f'headrace_engine_requests_total{{outcome="{k}"}} {v}' for k, v in self._outcomes.items()),
        ]
        return ("\n".join(lines) + "\n").encode()

    async def _generate(self, request: Request, responder: Responder, *, chat: bool) -> None:
        if self.draining:
            raise RequestError(Reason.DRAINING, "this engine is draining", retry_after=1.0)
        body = read_body(request.body, chat=chat)
        self.seen.append(Seen(request.path, request.headers, msgspec.json.decode(request.body), body))
        injection = self._faults.pop(0) if self._faults else None
        if injection is not None and await self._broken_at_once(injection.fault, responder):
            return
        if body.model != self.settings.model:
            raise RequestError(Reason.MODEL_NOT_FOUND, f"there is no model {body.model!r}", param="model")
        sequences = self._speaker.sequences(body, chat=chat)
        identity = body.hints.id or f"fake-{next(self._ids)}"
        tokens = sum(len(sequence.prompt) for sequence in sequences[:: body.choices])
        echoes = [text if body.echo else "" for text in prompts_text(body, self.tokenizer) for _ in range(body.choices)]
        told = Told(body.top, body.usage_everywhere)
        answer = Answer(self.settings.model, identity, self.tokenizer, Asked(tokens, echoes), chat=chat, told=told)
        try:
            if body.stream:
                await self._stream(answer, body, sequences, responder, injection)
            else:
                await self._whole(answer, body, sequences, responder)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self._outcomes["ok"] += 1

    async def _broken_at_once(self, fault: Fault, responder: Responder) -> bool:
        if fault is Fault.CLOSE_BEFORE_FIRST_BYTE:
            responder.abort()
            return True
        if fault is Fault.HANG:
            await self._client_left()
        if fault is Fault.REFUSE:
            raise RequestError(Reason.INTERNAL, "injected failure")
        if fault is Fault.DRAINING:
            raise RequestError(Reason.DRAINING, "this engine is draining", retry_after=1.0)
        return False

    async def _client_left(self) -> None:
        """Returns never: the handler is cancelled when the client leaves."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    def _reply(self, question: str) -> str:
        if self.answers is None:
            return question
        return self.answers(question) if callable(self.answers) else self.answers.get(question, question)

    async def _whole(self, answer: Answer, body: Body, sequences: list[Sequence], responder: Responder) -> None:
        choices: dict[int, Choice] = {}
        async with aclosing(self._speaker.pieces(body, sequences)) as pieces:
            async for piece in pieces:
                choice = choices[piece.choice.index] = piece.choice
                choice.text += piece.text
                choice.shown += piece.tokens
        ordered = [choices[index] for index in sorted(choices)]
        await responder.json(200, answer.whole(ordered, answer.usage(ordered, _cached(body, sequences))))

    async def _stream(
        self,
        answer: Answer,
        body: Body,
        sequences: list[Sequence],
        responder: Responder,
        injection: Injection | None,
    ) -> None:
        choices: dict[int, Choice] = {}
        async with aclosing(self._speaker.pieces(body, sequences)) as pieces:
            async for piece in pieces:
                choice = piece.choice
                if not responder.started:
                    await responder.head(200, _SSE)
                if choice.index not in choices:
                    choices[choice.index] = choice
                    await responder.send(answer.first(choice))
                if piece.text or (piece.tokens and body.top is not None):
                    usage = answer.usage(choices.values(), _cached(body, sequences))
                    await responder.send(answer.chunk(choice, piece.text, piece.tokens, usage))
                if piece.finish is not None:
                    await responder.send(answer.last(choice))
                if injection is not None and sum(c.tokens for c in choices.values()) >= injection.after_tokens:
                    await _broken(injection.fault, responder)
        if body.usage_asked:
            await responder.send(answer.usage_chunk(answer.usage(choices.values(), _cached(body, sequences))))
        await responder.send(b"data: [DONE]\n\n")
        await responder.end()


def _cached(body: Body, sequences: list[Sequence]) -> int:
    """Prompt tokens from the cache, of each prompt once."""
    return sum(sequence.cached for sequence in sequences[:: body.choices])


async def _broken(fault: Fault, responder: Responder) -> None:
    """What happens in the middle of a stream."""
    if fault is Fault.HANG_MID_STREAM:
        await asyncio.Event().wait()
    if fault is Fault.CLOSE_MID_STREAM:
        responder.abort()
        raise ConnectionResetError("injected failure")
    raise RequestError(Reason.ENGINE_FAILED, "injected failure")
