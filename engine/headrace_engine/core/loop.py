"""The core's loop: take messages, plan a step, run it, send what it brought."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from headrace_engine.core.messages import Abort, Control, Deltas, FromCore, StateReport, Submit, ToCore
from headrace_engine.core.plan import Runner, StepPlan, StepResult
from headrace_engine.core.scheduler import Scheduler
from headrace_engine.core.state import Reporter
from headrace_wire.protocol import Delta
from headrace_wire.reasons import Reason

log = logging.getLogger(__name__)

BUSY_REPORT_S = 0.2
IDLE_REPORT_S = 0.5
MAX_FAULTS = 3  # steps lost in a row before the core gives up


class Messages(Protocol):
    """The link to the API process."""

    def receive(self, timeout_s: float) -> list[ToCore]:
        """Messages that are there, waiting up to `timeout_s` for the first."""
        ...

    def send(self, message: FromCore) -> None:
        """Queue a message."""


class Loop:
    """Drives a scheduler and a runner until told to stop."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        link: Messages,
        reporter: Reporter,
        clock: Callable[[], float],
    ):
        """`clock`: monotonic seconds."""
        self._scheduler = scheduler
        self._runner = runner
        self._link = link
        self._reporter = reporter
        self._clock = clock
        self._plans: dict[int, StepPlan] = {}  # in flight
        self._reported_at = float("-inf")
        self._was_busy = False
        self._faults = 0
        self._stopped = False

    def run(self) -> None:
        """Until a Control `stop`. Raises when steps fail one after the other."""
        while not self._stopped:
            self.turn()

    def turn(self) -> None:
        """One round: messages, deadlines, one step, reports."""
        deltas: list[Delta] = []
        for message in self._link.receive(0.0 if self._scheduler.busy else self._until_report()):
            deltas += self._handle(message)
        now = self._clock()
        deltas += self._scheduler.expire(now)
        deltas += self._step()
        if deltas:
            self._link.send(Deltas(items=deltas))
        self._report()

    def _until_report(self) -> float:
        return max(0.0, self._reported_at + IDLE_REPORT_S - self._clock())

    def _report(self) -> None:
        busy = self._scheduler.busy
        now = self._clock()
        due = self._reported_at + (BUSY_REPORT_S if busy else IDLE_REPORT_S)
        if now >= due or busy != self._was_busy:
            self._was_busy = busy
            self._reported_at = now
            self._link.send(StateReport(state=self._reporter.state(self._scheduler, now)))

    def _handle(self, message: ToCore) -> list[Delta]:
        match message:
            case Submit():
                return self._submit(message)
            case Abort():
                return self._scheduler.abort(message.ids, message.reason)
            case Control():
                return self._control(message)

    def _submit(self, submit: Submit) -> list[Delta]:
        try:
            return self._scheduler.submit(submit, self._clock())
        except ValueError as error:  # the id is in use: its terminal Delta belongs to the request that runs
            log.error("submit refused", extra={"id": submit.id, "error": str(error)})
            return []
        except Exception:
            log.exception("submit failed", extra={"id": submit.id})
            return [Delta(id=submit.id, error=Reason.INTERNAL)]

    def _control(self, control: Control) -> list[Delta]:
        if control.kind == "reset_cache":
            self._scheduler.reset_cache(self._reporter.next_epoch())
            self._reported_at = float("-inf")  # the next report says so at once
            return []
        self._scheduler.draining = True
        if control.kind == "drain":
            return []
        self._stopped = True
        return self._scheduler.abort_all(Reason.DRAINING)

    def _step(self) -> list[Delta]:
        plan = None if self._stopped else self._scheduler.plan()
        deltas: list[Delta] = []
        if plan is not None:
            self._plans[plan.number] = plan
            try:
                self._runner.launch(plan)
            except Exception:
                log.exception("launch failed", extra={"step": plan.number})
                return self._lost_launch()
        while self._scheduler.in_flight > (self._runner.lag if plan is not None else 0):
            deltas += self._collect()
            if plan is None:
                break
        return deltas

    def _collect(self) -> list[Delta]:
        try:
            result = self._runner.collect()
        except Exception:
            log.exception("collecting a step failed")
            return self._lost()
        self._faults = 0
        return self._took(result)

    def _took(self, result: StepResult) -> list[Delta]:
        plan = self._plans.pop(result.number)
        self._reporter.observe(plan, result.ms / 1000.0)
        for row, reason in result.failed.items():
            log.error("row failed", extra={"row": row, "step": result.number, "reason": reason.value})
        return self._scheduler.apply(result)

    def _lost_launch(self) -> list[Delta]:
        """The newest step never began: collect those before it, then fail it."""
        deltas: list[Delta] = []
        while self._scheduler.in_flight > 1:
            deltas += self._collect()
        return deltas + self._lost()

    def _lost(self) -> list[Delta]:
        self._faults += 1
        self._plans.pop(min(self._plans))
        deltas = self._scheduler.fail_step(Reason.INTERNAL)
        if self._faults >= MAX_FAULTS:
            self._link.send(Deltas(items=deltas))
            raise RuntimeError(f"{self._faults} steps failed in a row")
        return deltas
