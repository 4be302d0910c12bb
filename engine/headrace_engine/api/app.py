"""The engine's routes, on raw ASGI."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from headrace_engine.api.client import Clock
from headrace_engine.api.generate import Generate
from headrace_engine.api.health import health, readiness
from headrace_engine.api.http import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    WrongMethod,
    respond,
    respond_error,
    respond_json,
)
from headrace_engine.api.mailbox import failure
from headrace_engine.api.openapi import document
from headrace_engine.api.parts import Parts
from headrace_engine.api.tokens import Tokens
from headrace_engine.version import version
from headrace_wire.protocol import PROTOCOL, EngineState
from headrace_wire.reasons import Reason, RequestError

Page = Callable[[Send], Awaitable[None]]
log = logging.getLogger(__name__)

METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
GET, POST = ("GET", "HEAD"), ("POST",)


class App:
    """ASGI application; see engine/PROTOCOL.md."""

    def __init__(self, parts: Parts, clock: Clock, started_at: float, instance: str):
        self._parts = parts
        self._clock = clock
        self._started_at = started_at
        self._created = int(time.time())
        self._instance = instance
        self._version = version()
        self._ready_at: float | None = None
        self.generate = Generate(parts)
        tokens = Tokens(parts)
        self._routes: dict[str, tuple[tuple[str, ...], Handler]] = {
            "/v1/chat/completions": (POST, partial(self.generate, chat=True)),
            "/v1/completions": (POST, partial(self.generate, chat=False)),
            "/tokenize": (POST, tokens.tokenize),
            "/detokenize": (POST, tokens.detokenize),
            "/headrace/v1/cache/reset": (POST, self._reset),
            **{path: (GET, _page(page)) for path, page in self._pages().items()},
        }

    def _pages(self) -> dict[str, Page]:
        return {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/version": self._version_page,
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
        try:
            await self._handler(scope["path"], scope["method"])(scope, receive, send)
        except ClientLeft:
            return
        except RequestError as error:
            await respond_error(send, error)
        except Exception:
            log.exception("request failed", extra={"path": scope["path"][:200]})
            await respond_error(send, RequestError(Reason.INTERNAL, "the engine failed on this request"))

    def _handler(self, path: str, method: str) -> Handler:
        """Raises RequestError where there is none."""
        if path in self._routes:
            methods, handler = self._routes[path]
        elif path.startswith("/v1/models/"):
            methods, handler = GET, _page(partial(self._model, path.removeprefix("/v1/models/")))
        else:
            raise RequestError(Reason.NOT_FOUND, f"there is no {path[:200]}")
        if method not in methods:
            raise WrongMethod(method, methods)
        return handler

    async def _reset(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond_json(send, {"epoch": await self._parts.link.reset_cache()})

    async def _version_page(self, send: Send) -> None:
        await respond_json(send, {"version": self._version, "protocol": PROTOCOL})

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
        self._parts.check_model(name)
        await respond_json(send, self._listing())

    def _listing(self) -> dict[str, Any]:
        ready = self._parts.link.ready
        limit = None if ready is None else ready.model.max_tokens
        name = self._parts.served_name
        return {"id": name, "object": "model", "created": self._created, "owned_by": "headrace", "max_model_len": limit}


def _page(page: Page) -> Handler:
    """A page needs nothing of the request."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await page(send)

    return handler
