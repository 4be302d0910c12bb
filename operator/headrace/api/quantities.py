"""Durations ("500ms"), byte quantities ("80Gi"), bandwidths ("50G") and container resources as users write them."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

from headrace.api.cel import Cel, Form, where_formed

DURATION_PATTERN = r"^[0-9]{1,9}(ms|s|m|h)$"
BYTES_PATTERN = r"^[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?$"
LATENCY_PATTERN = r"^[0-9]{1,9}(ns|us|ms|s)$"
RESOURCE_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"

LONGEST_S = 87_600 * 3600  # seconds
MOST_BYTES = 2**50
LEAST_MEMORY = 2**20  # bytes

SHORT_DURATION = r"^([0-9]{1,9}(ms|s)|[0-9]{1,8}m|[0-9]{1,6}h)$"  # what the API server can count
_DURATION_FORM = "must be a whole number of ms, s, m or h, such as 500ms, 30s, 10m or 1h"
_DURATION_RANGE = "must be more than 0 and at most 87600h"
_BYTES_FORM = "must be a whole number of bytes with one of the units k, M, G, T, Ki, Mi, Gi and Ti, such as 80Gi"
_BYTES_RANGE = "must be more than 0 and at most 1024Ti"
_MEMORY_RANGE = (
    "must be at least 1Mi of memory: a number without a unit is one of bytes; 80Gi is meant for 80 gibibytes"
)
_LATENCY_FORM = "must be a whole number of ns, us, ms or s, such as 2us"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_SCALES = {
    "": Decimal(1),
    **{unit: Decimal(10) ** (3 * (i - 3)) for i, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))},
    **{unit: Decimal(2) ** (10 * (i + 1)) for i, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}


@lru_cache(maxsize=1024)
def seconds(duration: str) -> float:
    """Seconds of a duration such as "500ms". Raises ValueError."""
    match = re.fullmatch(r"([0-9]+)(ns|us|ms|s|m|h)", duration)
    if match is None:
        raise ValueError(f"{duration!r} is not a duration such as 500ms, 30s, 10m or 1h")
    return int(match[1]) * _SECONDS[match[2]]


def byte_count(quantity: str) -> int:
    """Bytes of a quantity such as "80Gi". Raises ValueError."""
    match = re.fullmatch(r"([0-9]+)(Ki|Mi|Gi|Ti|k|M|G|T)?", quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity of bytes such as 512Mi or 80Gi")
    return int(match[1]) * _BYTES[match[2] or ""]


def resource_amount(quantity: str | int) -> Decimal:
    """Amount of a container resource as Kubernetes writes it: 2, "500m", "1.5Gi", "1e9". Raises ValueError."""
    text = str(quantity)
    match = re.fullmatch(RESOURCE_PATTERN, text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2 or 1.5Gi")
    unit = match[3] or ""
    if unit[:1] in {"e", "E"} and len(unit) > 1 and unit != "Ei":
        return Decimal(match[1]).scaleb(int(unit[1:]))
    return Decimal(match[1]) * _SCALES[unit]


def show_bytes(count: float) -> str:
    """A byte count for people, in binary units with at most one decimal: 15.4Gi."""
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return f"{count:.0f}"


def show_count(count: int, noun: str) -> str:
    """A number of things: 1 request, 2 requests."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_seconds(value: float) -> str:
    """A duration for people: 310ms, 2.4s, 5m, 150us."""
    if value >= 120 and value % 60 == 0:
        return f"{value / 60:.0f}m"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}s"


def _within_ten_years(value: str) -> str:
    if not 0 < seconds(value) <= LONGEST_S:
        raise ValueError(_DURATION_RANGE)
    return value


def _within_range(value: str) -> str:
    if not 0 < byte_count(value) <= MOST_BYTES:
        raise ValueError(_BYTES_RANGE)
    return value


def _of_memory(value: str) -> str:
    if byte_count(value) < LEAST_MEMORY:
        raise ValueError(_MEMORY_RANGE)
    return value


Duration = Annotated[str, Field(max_length=16), Form(DURATION_PATTERN, _DURATION_FORM)]
PositiveDuration = Annotated[
    Duration,
    AfterValidator(_within_ten_years),
    Cel(
        where_formed(
            DURATION_PATTERN,
            f"self.matches(r'{SHORT_DURATION}') && duration(self) > duration('0s') && "
            "duration(self) <= duration('87600h')",
        ),
        _DURATION_RANGE,
    ),
]
ByteQuantity = Annotated[str, Field(max_length=16), Form(BYTES_PATTERN, _BYTES_FORM)]
PositiveBytes = Annotated[
    ByteQuantity,
    AfterValidator(_within_range),
    Cel(
        where_formed(
            BYTES_PATTERN,
            "quantity(self).isGreaterThan(quantity('0')) && quantity(self).compareTo(quantity('1024Ti')) <= 0",
        ),
        _BYTES_RANGE,
    ),
]
MemoryBytes = Annotated[
    PositiveBytes,
    AfterValidator(_of_memory),
    Cel(where_formed(BYTES_PATTERN, "!quantity(self).isLessThan(quantity('1Mi'))"), _MEMORY_RANGE),
]
Latency = Annotated[str, Field(max_length=16), Form(LATENCY_PATTERN, _LATENCY_FORM)]
