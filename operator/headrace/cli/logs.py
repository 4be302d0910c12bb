"""Logs of operator and gateway: a line an event, as a JSON object or as text, with what it is about in fields."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import UTC, datetime
from enum import Enum

import msgspec

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_RENAMED = {"object": "name", "class_": "class"}
_QUIET = ("kopf.objects", "kopf.activities", "aiohttp.access", "httpx", "httpcore", "uvicorn")
_ENCODER = msgspec.json.Encoder()
ABOUT = "about"  # `extra={ABOUT: fields}` gives all fields at once, plain values under their final names: the cheap way
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Format(str, Enum):
    """How a line is written."""

    JSON = "json"
    TEXT = "text"


class JsonFormatter(logging.Formatter):
    """Fields given by `extra` become fields of the line; `object` becomes `name`, which LogRecords use otherwise."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _ENCODER.encode(line).decode()
        except (UnicodeError, OverflowError, TypeError):  # half of a surrogate pair, a number beyond 64 bits
            return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, logger and message, then the fields as NAME=VALUE; a value with a blank or a quote as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        words = [_time(record), record.levelname, record.name, record.getMessage()]
        words += [f"{name}={_bare(value)}" for name, value in _fields(record).items()]
        line = " ".join(words).replace("\n", "\\n").replace("\r", "\\r")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    about: dict[str, object] | None = record.__dict__.get(ABOUT)
    if about is not None:
        return about
    items = record.__dict__.items()
    return {_RENAMED.get(k, k): v for k, v in items if k not in _STANDARD and _simple(v)}


def _simple(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _bare(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text.isprintable() and text and not set(text) & {" ", '"', "="}
    return text if plain else json.dumps(text, ensure_ascii=False)


def configure(level: str = "INFO", style: str = "json") -> None:
    """Send all logs to stderr; what libraries say of each of their steps is left out. Raises ValueError for a style."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if Format(style) is Format.JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # nothing shows them
    logging._srcfile = None  # nor the caller's place, whose search is half of a line's cost
    for noisy in _QUIET:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_from(arguments: argparse.Namespace, command: str) -> None:
    """As `--log-level` and `--log-format` say. Raises UsageError."""
    from headrace.cli.main import UsageError

    styles = tuple(style.value for style in Format)
    level, style = arguments.log_level.upper(), arguments.log_format.lower()
    for flag, value, allowed in (("--log-level", level, LEVELS), ("--log-format", style, styles)):
        if value not in allowed:
            raise UsageError(f"{command}: {flag} must be one of {', '.join(allowed)}, got {value!r}")
    configure(level, style)
