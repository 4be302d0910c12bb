"""`GET /internal/v1/state`, and the gauges: what this gateway knows, read off its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.admission.quota import QuotaLedger
from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState, TenantState
from headrace.api.model import Model
from headrace.gateway.dispatch import Desk, Dispatcher
from headrace.gateway.engines import Engine, Fleet
from headrace.gateway.ledger import Books, ClassBook, TenantBook
from headrace.gateway.metering import Metrics
from headrace.gateway.world import ObjectKey, World


def report_age(engine: Engine, now: float) -> float:
    """Seconds that the oldest request waits inside an engine that has reported; 0: none waits."""
    report = engine.report
    if report is None or report.oldest_waiting_s is None or engine.reported_at is None or not report.waiting:
        return 0.0
    return max(0.0, report.oldest_waiting_s) + max(0.0, now - engine.reported_at)


@dataclass
class Reporter:
    """Builds the state from the parts that own it."""

    gateway: str
    started_at: float  # unix seconds
    world: World
    fleet: Fleet
    dispatcher: Dispatcher
    books: Books
    quotas: QuotaLedger
    clock: Callable[[], float]  # monotonic seconds
    wall: Callable[[], float]  # unix seconds
    _seq: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def state(self) -> GatewayState:
        """Everything, now."""
        wall = self.wall()
        return GatewayState(
            gateway=self.gateway,
            started_at=self.started_at,
            uptime_s=max(0.0, wall - self.started_at),
            seq=next(self._seq),
            models=[self._model(key, model) for key, model in sorted(self.world.models.items())],
            tenants=[self._tenant(key, wall) for key in sorted(self.world.tenants)],
        )

    def refresh(self, metrics: Metrics) -> None:
        """Bring the gauges up to date."""
        now = self.clock()
        for (namespace, name), model in self.world.models.items():
            desk = self.dispatcher.desks.get((namespace, name))
            inside = max((report_age(engine, now) for engine in self.fleet.of((namespace, name)).values()), default=0.0)
            for row in self._classes((namespace, name), model, desk, now):
                labels = (namespace, name, row.name)
                waiting = inside if row.in_flight else 0.0  # engines do not tell classes apart
                metrics.queue_age.labels(*labels).set(max(row.oldest_age_s or 0.0, waiting))
                metrics.queued.labels(*labels).set(row.queued)
                metrics.in_flight.labels(*labels).set(row.in_flight)

    def _model(self, key: ObjectKey, model: Model) -> ModelState:
        now, desk = self.clock(), self.dispatcher.desks.get(key)
        last = self.books.last_request.get(key)
        return ModelState(
            namespace=key[0],
            name=key[1],
            observed_generation=model.metadata.generation,
            classes=self._classes(key, model, desk, now),
            engines=self._engines(key, desk, now),
            last_request_age_s=None if last is None else max(0.0, now - last),
        )

    def _classes(self, key: ObjectKey, model: Model, desk: Desk | None, now: float) -> list[ClassState]:
        """The classes of the objective, and those that still have counters or waiting requests."""
        books = self.books.classes.get(key, {})
        names = [c.name for c in self.world.classes_of(model)]
        names += [name for name in books if name not in names]
        return [self._class(name, books.get(name, ClassBook()), desk, now) for name in names]

    def _class(self, name: str, book: ClassBook, desk: Desk | None, now: float) -> ClassState:
        queue = None if desk is None else desk.queue
        return ClassState(
            name=name,
            queued=0 if queue is None else queue.queued(name),
            queued_tokens=0 if queue is None else queue.queued_tokens(name),
            oldest_age_s=None if queue is None else queue.oldest_age(name, now),
            in_flight=book.in_flight,
            outcomes={outcome.value: number for outcome, number in book.outcomes.items()},
            offered=book.offered,
            admitted=book.admitted,
            offered_tokens=book.offered_tokens,
            answered=book.answered.copy(),
        )

    def _engines(self, key: ObjectKey, desk: Desk | None, now: float) -> list[EngineReport]:
        return [
            EngineReport(
                pod=pod,
                address=engine.address.netloc,
                age_s=None if engine.reported_at is None else max(0.0, now - engine.reported_at),
                in_flight=0 if desk is None else desk.in_flight(pod),
                state=engine.report,
            )
            for pod, engine in sorted(self.fleet.of(key).items())
        ]

    def _tenant(self, key: ObjectKey, wall: float) -> TenantState:
        usage, book = self.quotas.usage(key, wall), self.books.tenants.get(key, TenantBook())
        return TenantState(
            namespace=key[0],
            name=key[1],
            observed_generation=self.world.tenants[key].metadata.generation,
            requests_last_minute=usage.requests_last_minute,
            tokens_last_minute=usage.tokens_last_minute,
            tokens_today=usage.tokens_today,
            concurrent_requests=usage.concurrent_requests,
            outcomes={outcome.value: number for outcome, number in book.outcomes.items()},
            refused=dict(book.refused),
        )
