"""A few requests to the API server, by client certificate and standard library."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cluster.errors import ClusterError
from cluster.pki import Pair

TIMEOUT = 5.0  # seconds, connect and read


@dataclass(frozen=True)
class Client:
    """Speaks to one API server as one user."""

    url: str
    authority: Pair
    user: Pair

    def ask(self, method: str, path: str, body: str | None = None, kind: str = "application/json") -> tuple[int, Any]:
        """Status and decoded answer (None if it is not JSON); OSError where nobody answers."""
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        context.load_cert_chain(str(self.user.cert), str(self.user.key))
        parts = urlsplit(self.url)
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=TIMEOUT, context=context)
        try:
            connection.request(method, path, body, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"{self.url}: {error!r}") from error
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, None

    def ready(self) -> bool:
        """Whether `/readyz` says 200: only then are RBAC's own roles there."""
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> Any | None:
        """The object at `path`; None if it is not there (yet) or nobody answers."""
        try:
            status, answer = self.ask("GET", path)
        except OSError:
            return None
        return answer if status == 200 else None

    def create(self, path: str, item: str) -> None:
        """Create an object unless one of its name exists."""
        status, answer = self.ask("POST", path, item)
        if status not in (200, 201, 409):
            raise ClusterError(f"could not create {path}: HTTP {status} {answer}")

    def patch(self, path: str, patch: str) -> None:
        """Apply a strategic merge patch."""
        status, answer = self.ask("PATCH", path, patch, "application/strategic-merge-patch+json")
        if status != 200:
            raise ClusterError(f"could not patch {path}: HTTP {status} {answer}")
