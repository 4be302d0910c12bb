"""The log line that each request leaves when it has ended: whose it was, how it ended, how long each part took.

Never a prompt, an answer, a key, or a message that may quote one: names of objects, counts, times and reasons only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from headrace.gateway.account import Account
from headrace.gateway.call import Call
from headrace.gateway.dialects import CHAT_PATH, COMPLETION_PATH, MODELS_PATH
from headrace.gateway.ledger import Outcome, Times

logger = logging.getLogger(__name__)

ENDPOINTS = frozenset({CHAT_PATH, COMPLETION_PATH, MODELS_PATH, ""})  # "": no request came as far as a path


def endpoint_of(path: str) -> str:
    """A path as a line has it. What is no route of ours may be anything, a key that was pasted too: it is "other"."""
    if path.startswith(f"{MODELS_PATH}/"):
        return f"{MODELS_PATH}/{{name}}"
    return path if path in ENDPOINTS else "other"


@dataclass
class Line:
    """What is known of a request so far; times are monotonic seconds."""

    request_id: str  # x-request-id of the answer
    engine_id: str  # what an engine knows it by: holds request_id; a number follows where it was sent again
    endpoint: str
    began: float  # its head was there
    namespace: str = ""
    tenant: str = ""

    def refused(self, reason: str, status: int | None, now: float) -> None:
        """It was no valid request, or its client left before it was one."""
        self._write(logging.INFO, "refused", reason, status, {"total_ms": _ms(now - self.began)})

    def other(self, reason: str, status: int | None, now: float) -> None:
        """A route without a model has answered."""
        failed = status is None or (status >= 500 and not reason)
        outcome = "error" if failed else "refused" if reason else "good"
        level = logging.WARNING if failed else logging.INFO
        self._write(level, outcome, reason, status, {"total_ms": _ms(now - self.began)})

    def ended(self, call: Call, account: Account, status: int | None, now: float) -> None:
        """A valid request has ended."""
        outcome = "refused" if account.outcome is None else account.outcome.value
        level = logging.WARNING if account.outcome is Outcome.ERROR else logging.INFO
        if not logger.isEnabledFor(level):
            return
        progress = account.progress
        usage = progress.usage
        fields = {
            "model": call.model[1],
            "class": call.target.service.name,
            "stream": call.body.streams,
            "prompt_tokens": call.prompt_tokens if usage is None else usage.prompt_tokens,
            "cached_tokens": 0 if usage is None else usage.cached,
            "completion_tokens": progress.output_tokens,
            **_parts(call.times, now),
            "engine": account.engine,
            "sent": account.sent,
            "engine_id": self.engine_id,
        }
        self._write(level, outcome, account.reason, status, fields)

    def _write(self, level: int, outcome: str, reason: str, status: int | None, fields: dict[str, Any]) -> None:
        head = {
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "status": status,
            "outcome": outcome,
            "reason": reason,
            "namespace": self.namespace,
            "tenant": self.tenant,
        }
        logger.log(level, "request ended", extra={"about": head | fields})


def _parts(times: Times, now: float) -> dict[str, float | None]:
    """Milliseconds from the whole request being there to dispatch, to the first content, and to the end."""
    return {
        "queue_ms": _since(times.arrived, times.dispatched),
        "ttft_ms": _since(times.arrived, times.first),
        "total_ms": _ms(now - times.arrived),
    }


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else _ms(moment - start)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
