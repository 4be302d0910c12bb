"""What can go wrong when speaking to the Kubernetes API, by who must act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class ClusterError(Exception):
    """The cluster did not do what was asked."""


class NotConfigured(ClusterError):
    """Neither a pod's credentials nor a kubeconfig were found; the message gives the cure."""


class Unreachable(ClusterError):
    """No answer in time, or no connection. The request may have been carried out."""


class NotLeader(ClusterError):
    """A write was refused here because this process does not hold the Lease."""


class ApiError(ClusterError):
    """The API server refused; `status` is the HTTP status, `reason` the Status object's."""

    def __init__(self, status: int, body: Mapping[str, Any]):
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.message = str(body.get("message") or f"HTTP status {status}")
        self.details: Mapping[str, Any] = body.get("details") or {}
        super().__init__(f"{status} {self.reason}: {self.message}")

    @property
    def gone(self) -> bool:
        """The resourceVersion is too old: list again."""
        return self.status == 410

    @property
    def permanent(self) -> bool:
        """The same request will be refused again until somebody changes the object or a right."""
        return self.status in (400, 403, 422)


class NotFound(ApiError):
    """The object does not exist."""


class Conflict(ApiError):
    """Somebody else owns a field, or changed the object meanwhile."""

    @property
    def owners(self) -> dict[str, str]:
        """The other field manager by field path, such as {".spec.replicas": "scaler"}; empty for a stale version."""
        owners = {}
        for cause in self.details.get("causes") or ():
            match = re.search(r'conflict with "([^"]+)"', str(cause.get("message", "")))
            if cause.get("reason") == "FieldManagerConflict" and match:
                owners[str(cause.get("field", ""))] = match[1]
        return owners


def api_error(status: int, body: Mapping[str, Any]) -> ApiError:
    """The error of a refused request."""
    return {404: NotFound, 409: Conflict}.get(status, ApiError)(status, body)
