"""The little of HTTP that the routes need, on raw ASGI."""

from __future__ import annotations

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
_DISCARDED = 16  # bodies up to this many times the limit are read to their end, so that the answer is seen


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises RequestError BODY_TOO_LARGE above `limit` bytes, ClientLeft."""
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
        raise RequestError(Reason.BODY_TOO_LARGE, f"the body is larger than {limit} bytes")
    return b"".join(parts)


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
    if error.reason is Reason.BODY_TOO_LARGE:
        headers.append((b"connection", b"close"))
    await respond(send, error.reason.status, msgspec.json.encode(error.body()), headers)
