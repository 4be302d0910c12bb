"""The engines that serve now, and their last reports: polled 5 times a second while they work, each 2 s otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.gateway.counting import Counter
from headrace.gateway.settings import Settings
from headrace.gateway.upstream import Pool, UpstreamError
from headrace.gateway.world import Address, ObjectKey, World
from headrace.routing.types import Endpoint
from headrace_wire.protocol import PROTOCOL, EngineState

logger = logging.getLogger(__name__)

MAX_REPORT = 1024 * 1024  # bytes
REPORT_WAIT_S = 2.0
LARGEST = 10**15  # of any figure of a report, either way: what is larger cannot be
SUSPECT_S = 1.0  # an engine that failed a request still counts as one that serves, so long
_DECODER = msgspec.json.Decoder(EngineState)


@dataclass
class Engine:
    """One serving pod. Times are monotonic seconds."""

    model: ObjectKey
    address: Address
    since: float
    report: EngineState | None = None
    reported_at: float | None = None
    silent: bool = False  # the last time that it was asked, no report came
    suspect_at: float | None = None  # it failed a request then, and has not reported since
    hurry: asyncio.Event = field(default_factory=asyncio.Event)  # poll now: there is work
    task: asyncio.Task[None] | None = None
    _endpoint: Endpoint | None = None  # made when asked for; None after a change

    def suspect(self, now: float) -> None:
        """It failed a request: poll it now, and send it nothing until it reports."""
        self.suspect_at = now if self.suspect_at is None else self.suspect_at
        self._endpoint = None
        self.hurry.set()

    def exists(self, now: float) -> bool:
        """It serves, as far as is known: neither draining nor silent since it failed a request."""
        if self.report is not None and self.report.draining:
            return False
        return self.suspect_at is None or now - self.suspect_at < SUSPECT_S

    def reported(self, report: EngineState, now: float) -> None:
        """A report came."""
        self.report, self.reported_at, self.suspect_at, self._endpoint = report, now, None, None

    def fields(self) -> dict[str, str]:
        """What a line of the log says of it."""
        return {"namespace": self.model[0], "model": self.model[1], "engine": self.address.pod}

    def endpoint(self) -> Endpoint:
        """What routing sees; a suspect has no report."""
        if self._endpoint is None:
            self._endpoint = Endpoint(
                id=self.address.pod,
                address=self.address.netloc,
                since=self.since,
                report=self.report if self.suspect_at is None else None,
                reported_at=self.reported_at,
            )
        return self._endpoint


class Fleet:
    """All engines by model and pod."""

    def __init__(self, world: World, pool: Pool, counter: Counter, settings: Settings, clock: Callable[[], float]):
        self._world = world
        self._pool = pool
        self._counter = counter
        self._settings = settings
        self._clock = clock
        self._engines: dict[ObjectKey, dict[str, Engine]] = {}
        self._on_change: Callable[[ObjectKey], None] = lambda model: None
        self._on_gone: Callable[[ObjectKey, str], None] = lambda model, pod: None
        self._is_busy: Callable[[ObjectKey, str], bool] = lambda model, pod: False

    def watch_with(
        self,
        on_change: Callable[[ObjectKey], None],
        on_gone: Callable[[ObjectKey, str], None],
        is_busy: Callable[[ObjectKey, str], bool],
    ) -> None:
        """Whom to tell of reports and changes, and of engines that are gone; who knows whether we have work there."""
        self._on_change, self._on_gone, self._is_busy = on_change, on_gone, is_busy

    def of(self, model: ObjectKey) -> dict[str, Engine]:
        """The engines of a model by pod."""
        return self._engines.get(model, {})

    def context(self, model: ObjectKey) -> int | None:
        """The least context length that its engines report, in tokens; None while none has."""
        lengths = [e.report.model.max_tokens for e in self.of(model).values() if e.report and e.report.model.max_tokens]
        return min(lengths, default=None)

    def may_serve(self, model: ObjectKey) -> bool:
        """An engine of the model has reported, or has not been asked yet; endpoints alone may be anybody's."""
        return any(engine.report is not None or not engine.silent for engine in self.of(model).values())

    def exist(self, model: ObjectKey, now: float) -> bool:
        """An engine of the model serves, as far as is known."""
        return any(engine.exists(now) for engine in self.of(model).values())

    def hurry(self, model: ObjectKey) -> None:
        """There is work for this model: poll its engines at the busy pace."""
        for engine in self.of(model).values():
            engine.hurry.set()

    def reconcile(self) -> None:
        """Follow the world: pollers for the engines that are there, none for those that are not."""
        wanted = {m: a for m, a in self._world.endpoints.items() if m in self._world.models}
        for model in list(self._engines.keys() | wanted.keys()):
            now = {address.pod: address for address in wanted.get(model, ())}
            have = self._engines.setdefault(model, {})
            for pod, engine in list(have.items()):
                if now.get(pod) != engine.address:
                    del have[pod]
                    self._stop(engine)
                    self._on_gone(model, pod)
            for pod, address in now.items():
                if pod not in have:
                    have[pod] = self._start(model, address)
            if not have:
                del self._engines[model]
            self._on_change(model)

    def close(self) -> None:
        """Stop polling."""
        for engines in self._engines.values():
            for engine in engines.values():
                self._stop(engine)
        self._engines.clear()

    def _start(self, model: ObjectKey, address: Address) -> Engine:
        engine = Engine(model, address, self._clock())
        engine.task = asyncio.create_task(self._poll(engine))
        return engine

    def _stop(self, engine: Engine) -> None:
        if engine.task is not None:
            engine.task.cancel()
        self._pool.drop(engine.address.host, engine.address.port)

    async def _poll(self, engine: Engine) -> None:
        failures = 0
        while True:
            report = await self._ask(engine, failures)
            failures = failures + 1 if report is None else 0
            engine.silent = report is None
            if report is not None:
                try:
                    await self._take(engine, report)
                except Exception:  # an engine that is polled no more would never serve again
                    logger.exception("an engine's report could not be used", extra=engine.fields())
            await self._pause(engine)

    async def _take(self, engine: Engine, report: EngineState) -> None:
        now = self._clock()
        await self._learn(engine, report)  # first: prompts are counted before they are dispatched
        engine.reported(report, now)
        self._on_change(engine.model)

    async def _pause(self, engine: Engine) -> None:
        report, settings = engine.report, self._settings
        works = report is None or report.running or report.waiting or self._is_busy(engine.model, engine.address.pod)
        engine.hurry.clear()
        if works:
            await asyncio.sleep(settings.busy_poll_s)
            return
        try:
            async with asyncio.timeout(settings.idle_poll_s):
                await engine.hurry.wait()
        except TimeoutError:
            return

    async def _ask(self, engine: Engine, failures: int) -> EngineState | None:
        address = engine.address
        try:
            status, data = await self._pool.fetch(
                address.host, address.port, "/headrace/v1/state", MAX_REPORT, REPORT_WAIT_S
            )
            if status != 200:
                raise ValueError(f"status {status}")
            report = _DECODER.decode(data)
            if report.protocol not in (PROTOCOL, PROTOCOL - 1):
                raise ValueError(f"protocol {report.protocol}")
            if _is_absurd(msgspec.to_builtins(report)):
                raise ValueError("a figure that cannot be")
        except (UpstreamError, msgspec.MsgspecError, ValueError) as error:
            if failures in (0, 10):
                logger.warning("an engine's report did not come: %s", error, extra=engine.fields())
            return None
        return report

    async def _learn(self, engine: Engine, report: EngineState) -> None:
        digest, known = report.model.tokenizer, self._counter.tokenizer(engine.model)
        if digest and (known is None or known.digest != digest):
            await self._counter.learn(engine.model, digest, engine.address)


def _is_absurd(value: Any) -> bool:
    """A number in it is too large to be reckoned with."""
    if isinstance(value, dict):
        return any(map(_is_absurd, value.values()))
    if isinstance(value, list):
        return any(map(_is_absurd, value))
    return isinstance(value, (int, float)) and not abs(value) <= LARGEST
