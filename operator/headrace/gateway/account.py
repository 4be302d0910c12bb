"""What a request leaves behind: one outcome, a settled quota, its latencies. Exactly once, on every way out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType

from headrace.admission.quota import Reservation
from headrace.gateway.call import Call
from headrace.gateway.client import ClientGone
from headrace.gateway.ledger import ClassBook, Measured, Outcome, measure, missed_already, within
from headrace.gateway.metering import Metrics
from headrace.gateway.relay import Progress
from headrace_wire.reasons import Reason, RequestError

logger = logging.getLogger(__name__)

SHED = frozenset({Reason.QUEUE_FULL, Reason.DEADLINE_EXCEEDED, Reason.NO_CAPACITY, Reason.DRAINING})
REFUSED = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.CONTEXT_EXCEEDED,
        Reason.REQUEST_TOO_LARGE_FOR_QUOTA,
        Reason.BODY_TOO_LARGE,
        Reason.UNAUTHORIZED,
    }
)


def outcome_of(error: BaseException | None) -> Outcome | None:
    """How a request that ended with this error ended; None = it was no valid request. GOOD until it is judged."""
    if error is None:
        return Outcome.GOOD
    if isinstance(error, ClientGone):
        return Outcome.CANCELLED
    if not isinstance(error, RequestError):
        return Outcome.ERROR
    if error.reason is Reason.QUOTA_EXCEEDED:
        return Outcome.QUOTA
    if error.reason in SHED:
        return Outcome.SHED
    return None if error.reason in REFUSED else Outcome.ERROR


def _reason(error: BaseException | None) -> str:
    """Why, in a word that both logs and clients see; "" for an answer."""
    if error is None:
        return ""
    if isinstance(error, (RequestError, ClientGone)):
        return error.reason.value
    return Reason.DRAINING.value if isinstance(error, asyncio.CancelledError) else Reason.INTERNAL.value


class Account:
    """A context around serving one request; `error`, or else the exception that leaves it, tells how it ended."""

    def __init__(
        self, call: Call, book: ClassBook, metrics: Metrics, clock: Callable[[], float], wall: Callable[[], float]
    ):
        self._call = call
        self._book = book
        self._metrics = metrics
        self._clock = clock  # monotonic seconds
        self._wall = wall  # unix seconds
        self.error: RequestError | None = None  # what the client was told
        self.outcome: Outcome | None = None  # once it has ended; None then: it was no valid request
        self.reason = ""  # why it failed, once it has ended
        self.engine = ""  # pod that it was sent to last
        self.sent = 0  # times that it was sent to an engine
        self.reservation: Reservation | None = None
        self.progress = Progress(call.times, call.believes, lambda: call.prompt_tokens)

    def __enter__(self) -> Account:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended, error = self._clock(), self.error or raised
        outcome = outcome_of(error)
        if isinstance(error, asyncio.CancelledError) and self._call.times.dispatched is None:
            outcome = Outcome.SHED  # the gateway stops, and no engine had it
        self._settle(outcome)
        measured = None
        if outcome is Outcome.GOOD:
            measured = self._measured(ended)
            outcome = Outcome.GOOD if within(self._call.target.service, measured) else Outcome.LATE
        self.outcome, self.reason = outcome, _reason(error)
        if outcome is not None:
            missed = outcome is Outcome.CANCELLED and missed_already(self._call.target.service, self._call.times, ended)
            self._book.end(outcome, self._tokens(), target_missed=missed)
            if measured is not None:
                charged = self.progress.charged
                self._book.answered.add(charged.prompt_tokens, charged.cached, charged.completion_tokens)
        self._count(outcome, measured)
        if outcome is not None and isinstance(error, Exception) and not isinstance(error, (RequestError, ClientGone)):
            fields = {"engine_id": self._call.id, "namespace": self._call.model[0], "model": self._call.model[1]}
            logger.error("a request failed inside the gateway", exc_info=error, extra=fields)

    def _measured(self, ended: float) -> Measured:
        return measure(self.progress.times, ended, self.progress.output_tokens // self._call.body.choices)

    def _tokens(self) -> int:
        """Prompt and output tokens that were served."""
        charged = self.progress.charged
        return charged.prompt_tokens + charged.completion_tokens

    def _settle(self, outcome: Outcome | None) -> None:
        """Served tokens are charged; what was refused, shed or failed without output is given back whole."""
        if self.reservation is None:
            return
        served = outcome is Outcome.GOOD or self.progress.events > 0 or self.progress.usage is not None
        if served or (outcome is Outcome.CANCELLED and self._call.times.dispatched is not None):
            self.reservation.settle(self._tokens(), self._wall())
        else:
            self.reservation.cancel(self._wall())

    def _count(self, outcome: Outcome | None, measured: Measured | None) -> None:
        """The series, last of all: whatever they refuse, the request has been accounted for."""
        call, metrics = self._call, self._metrics
        try:
            if outcome is None:
                metrics.refused.labels(self.reason).inc()
                return
            metrics.end(call.labels, call.tenant[1], outcome)
            if measured is not None:
                metrics.series(call.labels).observe(measured)
            if call.times.dispatched is not None:
                self._count_tokens()
        except (ValueError, OverflowError):
            logger.exception("a request was not counted", extra={"engine_id": call.id})

    def _count_tokens(self) -> None:
        call, metrics, usage = self._call, self._metrics, self.progress.usage
        tokens = metrics.tokens(call.labels, call.tenant[1])
        tokens.output.inc(self.progress.output_tokens)
        if usage is None:
            return
        tokens.cached.inc(usage.cached)
        tokens.fresh.inc(usage.prompt_tokens - usage.cached)
        if call.counted and usage.prompt_tokens != call.prompt_tokens:
            metrics.mismatches.labels(*call.model).inc()
