"""The engine's routes, on raw ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace_engine.api.client import Clock
from headrace_engine.api.generate import Generate, Parts
from headrace_engine.api.health import health, readiness
from headrace_engine.api.http import Receive, Scope, Send, respond, respond_error, respond_json
from headrace_engine.api.mailbox import failure
from headrace_engine.api.openapi import document
from headrace_engine.version import version
from headrace_wire.protocol import PROTOCOL, EngineState
from headrace_wire.reasons import Reason, RequestError

Page = Callable[[Send], Awaitable[None]]
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class App:
    """ASGI application; see engine/PROTOCOL.md."""

    def __init__(self, parts: Parts, clock: Clock, started_at: float, instance: str):
        self._parts = parts
        self._clock = clock
        self._started_at = started_at
        self._instance = instance
        self._version = version()
        self._ready_at: float | None = None
        self.generate = Generate(parts)
        self._pages: dict[str, Page] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/headrace/v1/state": self._state,
            "/headrace/v1/info": self._info,
            "/headrace/v1/tokenizer": self._tokenizer,
            "/openapi.json": self._openapi,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        try:
            if path in ("/v1/chat/completions", "/v1/completions"):
                _expect(method, "POST")
                await self.generate(receive, send, chat=path == "/v1/chat/completions")
            elif path == "/headrace/v1/cache/reset":
                _expect(method, "POST")
                await respond_json(send, {"epoch": await self._parts.link.reset_cache()})
            elif path in self._pages:
                _expect(method, "GET")
                await self._pages[path](send)
            elif path.startswith("/v1/models/"):
                _expect(method, "GET")
                await self._model(path.removeprefix("/v1/models/"), send)
            else:
                raise RequestError(Reason.NOT_FOUND, f"there is no {path[:200]}")
        except RequestError as error:
            await respond_error(send, error)

    def became_ready(self) -> None:
        """The core has loaded the model."""
        self._ready_at = self._clock()

    def state(self) -> EngineState:
        """The core's latest report with what only this process knows. Raises RequestError before the first one."""
        link = self._parts.link
        if link.died.is_set():
            raise failure(Reason.ENGINE_FAILED)
        if link.state is None:
            raise RequestError(Reason.NO_CAPACITY, "the model is still being loaded", retry_after=1.0)
        now = self._clock()
        silent_ms = (now - link.progress.heard_at) * 1000 if link.open_choices else 0.0
        return msgspec.structs.replace(
            link.state,
            engine=self._version,
            instance=self._instance or link.state.instance,
            model=msgspec.structs.replace(link.state.model, tokenizer=self._parts.tokenizer.digest),
            draining=link.state.draining or self._parts.drain.begun.is_set(),
            pending_step_age_ms=max(link.state.pending_step_age_ms, silent_ms),
            startup_s=0.0 if self._ready_at is None else self._ready_at - self._started_at,
        )

    async def _health(self, send: Send) -> None:
        found = health(self._parts.link, self._clock())
        await respond_json(send, {"status": found.value}, found.status)

    async def _ready(self, send: Send) -> None:
        found = readiness(self._parts.link, draining=self._parts.drain.begun.is_set())
        await respond_json(send, {"status": found.value}, found.status)

    async def _metrics(self, send: Send) -> None:
        await respond(send, 200, self._parts.metrics.text(), (METRICS_TYPE,))

    async def _state(self, send: Send) -> None:
        await respond_json(send, self.state())

    async def _tokenizer(self, send: Send) -> None:
        await respond_json(send, self._parts.tokenizer.bundle)

    async def _openapi(self, send: Send) -> None:
        await respond(send, 200, document())

    async def _info(self, send: Send) -> None:
        ready = self._parts.link.ready
        if ready is None:
            raise RequestError(Reason.NO_CAPACITY, "the model is still being loaded", retry_after=1.0)
        model = msgspec.structs.replace(ready.model, tokenizer=self._parts.tokenizer.digest)
        await respond_json(
            send,
            {
                "protocol": PROTOCOL,
                "engine": self._version,
                "model": model,
                "shape": ready.shape,
                "memory": ready.memory,
                "kv_groups": ready.kv_groups,
                "total_pages": ready.total_pages,
                "cache_root": ready.cache_root,
            },
        )

    async def _models(self, send: Send) -> None:
        await respond_json(send, {"object": "list", "data": [self._listing()]})

    async def _model(self, name: str, send: Send) -> None:
        if name != self._parts.served_name:
            raise RequestError(Reason.MODEL_NOT_FOUND, f"there is no model {name[:100]!r}", param="model")
        await respond_json(send, self._listing())

    def _listing(self) -> dict[str, Any]:
        ready = self._parts.link.ready
        limit = None if ready is None else ready.model.max_tokens
        name = self._parts.served_name
        return {"id": name, "object": "model", "created": 0, "owned_by": "headrace", "max_model_len": limit}


def _expect(method: str, wanted: str) -> None:
    if method != wanted:
        raise RequestError(Reason.METHOD_NOT_ALLOWED, f"use {wanted} here")
