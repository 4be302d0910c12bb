"""Attainment over long windows, from Prometheus. Its absence changes nothing but a sentence in a status."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 10.0
OFFERED = "good|late|error|shed"


class Prometheus(Protocol):
    """The one call that is used of a Prometheus client."""

    def custom_query(self, query: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        """Result vector of an instant query."""
        ...


def connect(url: str) -> Prometheus:
    """A client of the Prometheus at `url`."""
    client: Prometheus = PrometheusConnect(url=url, disable_ssl=False)
    return client


class History:
    """Asks in a thread; a failure is logged once until it is over, and reads as "nothing known"."""

    def __init__(self, url: str, connect: Callable[[str], Prometheus] = connect):
        self._client = connect(url)
        self._failing = False

    async def attainment(self, namespace: str, model: str, window: str) -> dict[str, int]:
        """Percent of the offered requests that were good over `window` (such as 1h), by class; {} if unknown."""
        query = attainment_query(namespace, model, window)
        try:
            vector = await asyncio.to_thread(self._client.custom_query, query, None, QUERY_TIMEOUT_S)
            found = read_vector(vector)
        except (OSError, ValueError, LookupError, TypeError, PrometheusApiClientException) as error:
            if not self._failing:
                log.warning("history was not read: %s", error, extra={"kind": "Model", "object": model})
            self._failing = True
            return {}
        self._failing = False
        return found


def attainment_query(namespace: str, model: str, window: str) -> str:
    """PromQL: good of offered, by class."""

    def rate(outcomes: str) -> str:
        selector = f'model_namespace="{namespace}",model="{model}",outcome=~"{outcomes}"'
        return f"sum by (class) (increase(headrace_requests_total{{{selector}}}[{window}]))"

    return f"100 * {rate('good')} / {rate(OFFERED)}"


def read_vector(vector: Any) -> dict[str, int]:
    """Whole percentages by class, rounded down; NaN (nothing offered) is left out. Raises ValueError and the like."""
    found = {}
    for entry in vector:
        value = float(entry["value"][1])
        if math.isfinite(value):
            found[str(entry["metric"].get("class", ""))] = max(0, min(100, int(value)))
    return found


def words(attainment: dict[str, int], window: str) -> str:
    """A sentence for a condition; "" if nothing is known."""
    if not attainment:
        return ""
    parts = ", ".join(f"{name} {percent} %" for name, percent in sorted(attainment.items()))
    return f"over {window}: {parts} good"
