"""The little of HTTP that the routes need, on raw ASGI."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from headrace_wire.reasons import Reason, RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
UPLOAD_S = 60.0  # for a whole body: its client is a gateway nearby
_DISCARDED = 16  # bodies up to this many times the limit are read to their end, so that the answer is seen
_CLOSES = (Reason.BODY_TOO_LARGE, Reason.UPLOAD_TOO_SLOW)  # the rest of the body is not read


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


class WrongMethod(RequestError):
    """The route has other methods."""

    def __init__(self, method: str, allowed: tuple[str, ...]):
        super().__init__(Reason.METHOD_NOT_ALLOWED, f"use {' or '.join(allowed)} here, not {method[:20]}")
        self.allowed = allowed


def check_content(scope: Scope, limit: int) -> None:
    """Bodies are plain JSON; a client that says nothing of its body is believed, and one that asks before it sends more
    than `limit` bytes is told at once. Raises RequestError.
    """
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if headers.get(b"expect", b"").lower() == b"100-continue" and length.isdigit() and int(length) > limit:
        raise too_large(limit)
    for name, value in scope["headers"]:
        said = value.decode("latin-1").partition(";")[0].strip().lower()
        if name == b"content-type" and said not in ("", "application/json") and not said.endswith("+json"):
            raise RequestError(Reason.UNSUPPORTED_MEDIA, f"content-type: must be application/json, not {said[:100]!r}")
        if name == b"content-encoding" and said not in ("", "identity"):
            raise RequestError(Reason.UNSUPPORTED_MEDIA, f"content-encoding: {said[:100]!r} is not supported")


async def read_body(receive: Receive, limit: int, within_s: float = UPLOAD_S) -> bytes:
    """The whole body. Raises RequestError above `limit` bytes or after `within_s`, ClientLeft."""
    try:
        async with asyncio.timeout(within_s):
            return await _read(receive, limit)
    except TimeoutError as error:
        raise RequestError(Reason.UPLOAD_TOO_SLOW, f"the body was not complete after {within_s:g} s") from error


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()
        if not message.get("more_body", False) or size > limit * _DISCARDED:
            break
    if size > limit:
        raise too_large(limit)
    return b"".join(parts)


def too_large(limit: int) -> RequestError:
    """A body is refused."""
    return RequestError(Reason.BODY_TOO_LARGE, f"the body is larger than {limit} bytes")


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, status: int, body: bytes, headers: Headers = (JSON,)) -> None:
    """A response of known length."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, value: Any, status: int = 200) -> None:
    """A JSON response."""
    await respond(send, status, msgspec.json.encode(value))


async def respond_error(send: Send, error: RequestError) -> None:
    """The OpenAI-style error object with its status."""
    headers = [JSON]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(error.retry_after)).encode()))
    if error.reason in _CLOSES:
        headers.append((b"connection", b"close"))
    if isinstance(error, WrongMethod):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    await respond(send, error.reason.status, msgspec.json.encode(error.body()), headers)
