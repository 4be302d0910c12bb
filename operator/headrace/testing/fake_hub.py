"""A model hub on loopback that speaks what a download of a snapshot needs: the repository's listing, and its files."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

from headrace.testing.loopback import LoopbackServer, Request, Responder

COMMIT = "9f3c" * 10


@dataclass
class FakeHub:
    """`async with FakeHub({"org/name": {"config.json": b"{}"}}) as hub: hub.url`.

    `gated` repositories want `token`. A name in `lost` is listed but not served. The first `down` requests get 503.
    """

    repositories: dict[str, dict[str, bytes]]
    token: str = "hf_secret"
    gated: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    down: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # by method and path

    def __post_init__(self) -> None:
        self._server = LoopbackServer(self._handle)

    @property
    def url(self) -> str:
        """Base URL: what HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self._server.port}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop()

    async def _handle(self, request: Request, responder: Responder) -> None:
        path = unquote(request.path.partition("?")[0]).strip("/")
        self.requests[f"{request.method} /{path}"] += 1
        if self.down > 0:
            self.down -= 1
            await responder.json(503, {"error": "overloaded"})
            return
        parts = path.split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            tree = len(parts) > 4 and parts[4] == "tree"
            revision = parts[5] if len(parts) > 5 else "main"
            await self._listing("/".join(parts[2:4]), revision, request, responder, tree=tree)
        elif len(parts) > 4 and parts[2] == "resolve":
            await self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), request, responder)
        else:
            await self._refuse(404, "EntryNotFound", request, responder)

    def _refusal(self, repository: str, revision: str, request: Request) -> tuple[int, str] | None:
        allowed = request.headers.get("authorization") == f"Bearer {self.token}"
        if repository in self.gated and not allowed:
            return 401, "GatedRepo"
        if repository not in self.repositories:
            return (404, "RepoNotFound") if allowed else (401, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return 404, "RevisionNotFound"
        return None

    async def _refuse(self, status: int, code: str, request: Request, responder: Responder) -> None:
        headers = {"x-error-code": code, "x-error-message": code, "content-length": "0"}
        if request.method == "HEAD":
            await responder.bare(status, headers)
        else:
            await responder.json(status, {"error": code}, {"x-error-code": code, "x-error-message": code})

    async def _listing(
        self, repository: str, revision: str, request: Request, responder: Responder, *, tree: bool
    ) -> None:
        refusal = self._refusal(repository, revision, request)
        if refusal is not None:
            await self._refuse(*refusal, request, responder)
            return
        files = {**self.repositories[repository], **dict.fromkeys(self.lost, b"lost")}
        if tree:
            oids = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            rows = [{"type": "file", "path": n, "size": len(files[n]), "oid": oid} for n, oid in oids.items()]
            await responder.json(200, rows)
            return
        siblings: list[dict[str, Any]] = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        await responder.json(200, {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings})

    async def _file(self, repository: str, revision: str, name: str, request: Request, responder: Responder) -> None:
        refusal = self._refusal(repository, revision, request)
        data = self.repositories.get(repository, {}).get(name)
        if refusal is not None or data is None:
            await self._refuse(*(refusal or (404, "EntryNotFound")), request, responder)
            return
        etag = hashlib.sha256(data).hexdigest()
        headers = {"etag": f'"{etag}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        if request.method == "HEAD":
            await responder.bare(200, {**headers, "content-length": str(len(data))})
        else:
            await responder.whole(200, data, {**headers, "content-type": "application/octet-stream"})
