"""Why a request was refused or ended: one enum gives HTTP status, OpenAI error type and whether a retry can help."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Reason(str, Enum):
    """A machine-readable reason; its value is the `code` of the OpenAI-style error object."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_EXCEEDED = "context_length_exceeded"
    BODY_TOO_LARGE = "body_too_large"
    UPLOAD_TOO_SLOW = "request_timeout"
    UNSUPPORTED_MEDIA = "unsupported_media_type"
    UNAUTHORIZED = "invalid_api_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    QUOTA_EXCEEDED = "quota_exceeded"
    REQUEST_TOO_LARGE_FOR_QUOTA = "request_exceeds_quota"
    QUEUE_FULL = "queue_full"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NO_CAPACITY = "no_capacity"
    DRAINING = "draining"
    CANCELLED = "cancelled"
    SLOW_READER = "slow_reader"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    INTERNAL = "internal_error"

    @property
    def status(self) -> int:
        """HTTP status code."""
        return _TABLE[self][0]

    @property
    def type(self) -> str:
        """OpenAI error type."""
        return _TABLE[self][1]

    @property
    def retryable(self) -> bool:
        """True where the same request can succeed later or elsewhere."""
        return _TABLE[self][2]


_TABLE: dict[Reason, tuple[int, str, bool]] = {
    Reason.INVALID_REQUEST: (400, "invalid_request_error", False),
    Reason.CONTEXT_EXCEEDED: (400, "invalid_request_error", False),
    Reason.BODY_TOO_LARGE: (413, "invalid_request_error", False),
    Reason.UPLOAD_TOO_SLOW: (408, "invalid_request_error", True),
    Reason.UNSUPPORTED_MEDIA: (415, "invalid_request_error", False),
    Reason.UNAUTHORIZED: (401, "authentication_error", False),
    Reason.MODEL_NOT_ALLOWED: (403, "permission_error", False),
    Reason.CLASS_NOT_ALLOWED: (403, "permission_error", False),
    Reason.MODEL_NOT_FOUND: (404, "invalid_request_error", False),
    Reason.NOT_FOUND: (404, "invalid_request_error", False),
    Reason.METHOD_NOT_ALLOWED: (405, "invalid_request_error", False),
    Reason.QUOTA_EXCEEDED: (429, "quota_exceeded", True),
    Reason.REQUEST_TOO_LARGE_FOR_QUOTA: (400, "invalid_request_error", False),
    Reason.QUEUE_FULL: (429, "overloaded_error", True),
    Reason.DEADLINE_EXCEEDED: (503, "overloaded_error", True),
    Reason.NO_CAPACITY: (503, "overloaded_error", True),
    Reason.DRAINING: (503, "overloaded_error", True),
    Reason.CANCELLED: (499, "cancelled", False),
    Reason.SLOW_READER: (499, "cancelled", False),
    Reason.ENGINE_FAILED: (502, "server_error", True),
    Reason.ENGINE_TIMEOUT: (504, "server_error", True),
    Reason.OUT_OF_MEMORY: (503, "server_error", True),
    Reason.INTERNAL: (500, "server_error", False),
}


class RequestError(Exception):
    """A request cannot be served: carries the reason, a message for the caller and the field at fault."""

    def __init__(self, reason: Reason, message: str, *, param: str | None = None, retry_after: float | None = None):
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds

    def body(self) -> dict[str, Any]:
        """The OpenAI-style error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.reason.type,
                "param": self.param,
                "code": self.reason.value,
            }
        }
