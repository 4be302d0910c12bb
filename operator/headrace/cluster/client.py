"""A small asynchronous client of the Kubernetes API, on aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from headrace.cluster.connection import Connection, discover
from headrace.cluster.errors import NotConfigured, Unreachable, api_error
from headrace.cluster.resources import Resource

Object = dict[str, Any]
REQUEST_TIMEOUT_S = 4.0  # below lease - renew deadline, so that no write of a former leader is still on its way
LIST_TIMEOUT_S = 30.0
PAGE = 500  # objects of one LIST page
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Client:
    """Requests as dictionaries. Raises ApiError where the server refuses, Unreachable where it does not answer."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._session: aiohttp.ClientSession | None = None
        self._ssl = connection.ssl_context() if connection.server.startswith("https") else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object. Raises NotFound."""
        return await self.request("GET", resource.path(namespace, name))

    async def list(
        self, resource: Resource, namespace: str | None, label_selector: str | None = None
    ) -> tuple[list[Object], str]:
        """All objects, and the resourceVersion to watch from. `namespace` None = all."""
        params = {"limit": str(PAGE)} | ({"labelSelector": label_selector} if label_selector else {})
        items: list[Object] = []
        while True:
            page = await self.request("GET", resource.path(namespace), params=params, timeout=LIST_TIMEOUT_S)
            for item in page.get("items") or ():
                items.append({"apiVersion": resource.api_version, "kind": resource.kind, **item})
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            params = {**params, "continue": metadata["continue"]}

    async def create(self, resource: Resource, obj: Object) -> Object:
        """Create; the namespace is the object's."""
        return await self.request("POST", resource.path(obj["metadata"]["namespace"]), body=obj)

    async def replace(self, resource: Resource, obj: Object) -> Object:
        """Update the whole object; its resourceVersion, if any, must be the present one (else Conflict)."""
        metadata = obj["metadata"]
        return await self.request("PUT", resource.path(metadata["namespace"], metadata["name"]), body=obj)

    async def patch(
        self, path: str, body: Object, *, content_type: str = MERGE, params: Mapping[str, str] | None = None
    ) -> Object:
        """Patch what `path` names."""
        return await self.request("PATCH", path, body=body, params=params, content_type=content_type)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete in the background; with `uid` only that very object (else Conflict)."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        await self.request("DELETE", resource.path(namespace, name), body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> Object:
        """One request; a 401 is tried once more with a new token."""
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        limit = aiohttp.ClientTimeout(total=timeout)
        for attempt in (0, 1):
            headers = {"Content-Type": content_type, "Accept": "application/json", **await self._authorization(attempt)}
            try:
                async with self._http().request(
                    method, path, data=data, params=params, headers=headers, timeout=limit
                ) as response:
                    answer = await response.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
            if response.status == 401 and attempt == 0 and self.connection.load_token is not None:
                continue
            parsed = _parse(answer)
            if response.status >= 400:
                raise api_error(response.status, parsed)
            return parsed
        raise Unreachable(f"{method} {path}: not authenticated")

    async def watch(self, path: str, params: Mapping[str, str], *, inactivity_s: float) -> AsyncIterator[Object]:
        """Watch events; ends when the server ends it. Raises Unreachable after `inactivity_s` of silence."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=inactivity_s)
        query = {"watch": "1", "allowWatchBookmarks": "true", **params}
        headers = {"Accept": "application/json", **await self._authorization(0)}
        try:
            async with self._http().get(path, params=query, headers=headers, timeout=limit) as response:
                if response.status >= 400:
                    if response.status == 401:
                        await self._authorization(1)
                    raise api_error(response.status, _parse(await response.read()))
                buffer = b""
                async for chunk in response.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield _parse(line)
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"watch {path}: {type(error).__name__}: {error}") from error

    async def _authorization(self, attempt: int) -> dict[str, str]:
        token = await self.connection.token(stale=attempt > 0)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._ssl if self._ssl is not None else True, limit=0)
            self._session = aiohttp.ClientSession(
                self.connection.server, connector=connector, proxy=self.connection.proxy
            )
        return self._session


def _parse(data: bytes) -> Object:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {"message": data[:500].decode("utf-8", "replace")}
    return parsed if isinstance(parsed, dict) else {"message": str(parsed)[:500]}


async def connect(kubeconfig: str | None = None) -> Client:
    """A client for the cluster of this pod, or of the kubeconfig. Raises NotConfigured."""
    connection = await discover(kubeconfig)
    try:
        return Client(connection)
    except OSError as error:  # ssl's errors are such, too
        raise NotConfigured(f"no cluster: the certificates of {connection.server} are unusable ({error})") from error
