"""Logs as one JSON object a line: what happened, in the past tense, with kind and name as fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_RENAMED = {"object": "name"}


class JsonFormatter(logging.Formatter):
    """Fields given by `extra` become fields of the line; `object` becomes `name`, which LogRecords use otherwise."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {_RENAMED.get(k, k): v for k, v in record.__dict__.items() if k not in _STANDARD and _simple(v)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _simple(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def configure(level: str = "INFO") -> None:
    """Send all logs to stderr as JSON; kopf's per-handler chatter is left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("kopf.objects", "kopf.activities", "aiohttp.access", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
