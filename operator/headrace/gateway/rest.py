"""The routes that are not hot: the list of models for clients; state, metrics and health on their own port."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.api.gateway_state import GatewayState
from headrace.api.model import Model
from headrace.gateway.client import error_body, error_headers, not_synced
from headrace.gateway.dialects import CHAT_PATH, COMPLETION_PATH, MODELS_PATH
from headrace.gateway.identity import authenticate, check_headers
from headrace.gateway.world import World
from headrace_wire.reasons import Reason, RequestError

REQUEST_ID = "headrace.request_id"  # in the ASGI scope, where there is one
LONGEST_PATH = 200  # characters of a path that is none of ours


async def _on_error(request: Request, error: Exception) -> Response:
    """The OpenAI-style answer to a failed request."""
    told = error if isinstance(error, RequestError) else _told(request.url.path[:LONGEST_PATH], error)
    headers = {name.decode(): value.decode() for name, value in error_headers(told)}
    body = error_body(told, request.scope.get(REQUEST_ID, ""))
    return Response(body, told.reason.status, headers, media_type="application/json")


def _told(path: str, error: Exception) -> RequestError:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return RequestError(Reason.NOT_FOUND, f"there is no route {path}; chats go to {CHAT_PATH}")
    if status == 405:
        words = "POST" if path in (CHAT_PATH, COMPLETION_PATH) else "GET"
        return RequestError(Reason.METHOD_NOT_ALLOWED, f"{path} takes {words}")
    return RequestError(Reason.INTERNAL, "the gateway failed")


_HANDLERS: Any = {RequestError: _on_error, HTTPException: _on_error}


def client_routes(world: World) -> Starlette:
    """`GET /v1/models` and `GET /v1/models/NAME`: what the key may call. Everything else is an error object."""

    def listed(request: Request) -> dict[str, dict[str, Any]]:
        if not world.synced:
            raise not_synced()
        tenant = authenticate(_authorization(request), world.keys, time.time())
        namespace = tenant.metadata.namespace
        names = [ref.name for ref in tenant.spec.models if (namespace, ref.name) in world.models]
        found = [world.models[namespace, name] for name in names]
        return {model.metadata.name: _listed(model) for model in found}

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": list(listed(request).values())})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        found = listed(request).get(name)
        if found is None:
            raise RequestError(Reason.MODEL_NOT_FOUND, f"the model {name!r} does not exist", param="model")
        return _json(found)

    async def wrong_method(request: Request) -> Response:
        raise HTTPException(405)

    routes = [
        Route(MODELS_PATH, models),
        Route(f"{MODELS_PATH}/{{name}}", model),
        Route(CHAT_PATH, wrong_method, methods=["GET", "PUT", "PATCH", "DELETE"]),
        Route(COMPLETION_PATH, wrong_method, methods=["GET", "PUT", "PATCH", "DELETE"]),
    ]
    return Starlette(routes=routes, exception_handlers=_HANDLERS)


def state_routes(
    state: Callable[[], GatewayState],
    registry: CollectorRegistry,
    refresh: Callable[[], None],
    ready: Callable[[], str],
) -> Starlette:
    """State, metrics and health. `ready` gives "" or why not; `refresh` brings gauges up to date."""

    async def show_state(_: Request) -> Response:
        return Response(msgspec.json.encode(state()), media_type="application/json")

    async def metrics(_: Request) -> Response:
        refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(_: Request) -> Response:
        why = ready()
        return _json({"status": why or "ready"}, 503 if why else 200)

    routes = [
        Route("/internal/v1/state", show_state),
        Route("/metrics", metrics),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
    ]
    return Starlette(routes=routes, exception_handlers=_HANDLERS)


def _listed(model: Model) -> dict[str, Any]:
    """OpenAI's object of a model; `created` in unix seconds, as the cluster has it."""
    meta = model.metadata
    made = 0 if meta.creation_timestamp is None else int(datetime.fromisoformat(meta.creation_timestamp).timestamp())
    return {"id": meta.name, "object": "model", "created": made, "owned_by": meta.namespace}


def _authorization(request: Request) -> bytes | None:
    pairs = request.headers.raw
    headers = dict(pairs)
    check_headers(pairs, headers)
    return headers.get(b"authorization")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
