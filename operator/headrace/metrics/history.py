"""Attainment over long windows, and the load of before, from Prometheus. Its absence changes nothing but a sentence in
a status, and how soon after a start forecasts know the load of the last half hour."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from headrace.scaling.recall import Point

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 10.0
OFFERED = "good|late|error|shed"
LOAD_S, STEP_S, RATE_S = 1800.0, 15.0, 60.0  # of the load: how far back, between two points, of which each is a mean
T = TypeVar("T")


class Prometheus(Protocol):
    """The one call that is used of a Prometheus client."""

    def custom_query(self, query: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        """Result vector of an instant query."""
        ...

    def custom_query_range(
        self,
        query: str,
        start_time: datetime,
        end_time: datetime,
        step: str,
        params: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Result matrix of a query over a range."""
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

        def ask() -> dict[str, int]:
            return read_vector(self._client.custom_query(query, None, QUERY_TIMEOUT_S))

        return await self._asked(ask, model) or {}

    async def offered(self, namespace: str, model: str, until: float) -> tuple[Point, ...]:
        """Requests/s that were offered in the half hour before `until` (unix seconds); () if unknown."""
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (until - LOAD_S, until))
        query = offered_query(namespace, model)

        def ask() -> tuple[Point, ...]:
            matrix = self._client.custom_query_range(query, begin, end, f"{STEP_S:.0f}s", None, QUERY_TIMEOUT_S)
            return read_matrix(matrix)

        return await self._asked(ask, model) or ()

    async def _asked(self, ask: Callable[[], T], model: str) -> T | None:
        try:
            found = await asyncio.to_thread(ask)
        except (OSError, ValueError, LookupError, TypeError, PrometheusApiClientException) as error:
            if not self._failing:
                log.warning("history was not read: %s", error, extra={"kind": "Model", "object": model})
            self._failing = True
            return None
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


def offered_query(namespace: str, model: str) -> str:
    """PromQL: offered requests/s over the minute before."""
    selector = f'model_namespace="{namespace}",model="{model}",outcome=~"{OFFERED}"'
    return f"sum(rate(headrace_requests_total{{{selector}}}[{RATE_S:.0f}s]))"


def read_matrix(matrix: Any) -> tuple[Point, ...]:
    """The points of the only series, each at the middle of the minute that it is the mean of. Raises ValueError and the
    like; what cannot be a rate is left to whoever uses it."""
    series = list(matrix)
    if len(series) > 1:
        raise ValueError(f"{len(series)} series where a sum has one")
    return tuple(Point(float(at) - RATE_S / 2, float(rate)) for entry in series for at, rate in entry["values"])


def words(attainment: dict[str, int], window: str) -> str:
    """A sentence for a condition; "" if nothing is known."""
    if not attainment:
        return ""
    parts = ", ".join(f"{name} {percent} %" for name, percent in sorted(attainment.items()))
    return f"over {window}: {parts} good"
