"""Gateways' reports → one Sample per Model. What is missing, stale or implausible becomes a Fault, never a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState
from headrace.scaling.types import (
    ClassSample,
    Counters,
    EngineSample,
    Fault,
    FaultKind,
    GatewaySample,
    ModelKey,
    Sample,
)

STALE_S = 5.0  # an older report is not used
SKEW_S = 2.0  # clocks may differ by so much
MOST_REQUESTS = 1e7  # at one time
MOST_COUNTED = 1e15  # requests or tokens, ever
MOST_SECONDS = 7 * 86_400.0  # that a request waits
MOST_UPTIME_S = 20 * 365 * 86_400.0


@dataclass(frozen=True)
class GatewayReport:
    """The last answer of one gateway that is expected to answer; `state` None: it did not."""

    gateway: str
    received_at: float  # unix seconds
    state: GatewayState | None


@dataclass
class _Check:
    """Reads numbers of one source; what cannot be used is noted once."""

    source: str
    faults: list[Fault] = field(default_factory=list)

    def note(self, input_: str, kind: FaultKind, detail: str = "") -> None:
        self.faults.append(Fault(self.source, input_, kind, detail))

    def number(self, input_: str, value: float | None, most: float) -> float | None:
        """The value, or None with a Fault."""
        if value is None:
            self.note(input_, FaultKind.MISSING)
        elif math.isnan(value):
            self.note(input_, FaultKind.NAN)
        elif value < 0:
            self.note(input_, FaultKind.NEGATIVE, f"{value:g}")
        elif value > most:
            self.note(input_, FaultKind.HUGE, f"{value:g}")
        else:
            return value
        return None

    def count(self, input_: str, value: float | None, most: float = MOST_REQUESTS) -> int:
        """The value as a whole number; 0 with a Fault where it cannot be used."""
        return int(self.number(input_, value, most) or 0)


@dataclass
class _Merging:
    """What has been gathered of one Model."""

    classes: dict[str, ClassSample] = field(default_factory=dict)
    gateways: list[GatewaySample] = field(default_factory=list)
    engines: dict[str, tuple[float | None, EngineReport]] = field(default_factory=dict)  # by pod: age, report
    faults: list[Fault] = field(default_factory=list)


def merge(
    reports: Sequence[GatewayReport], now: float, models: Iterable[ModelKey] = (), stale_after_s: float = STALE_S
) -> dict[ModelKey, Sample]:
    """A Sample for each Model that a gateway knows and for each of `models`.

    Counts are sums over the gateways; a gateway that did not answer, whose answer is stale or that does not know a
    Model is a Fault of the sample. Of two reports by one gateway the later counts.
    """
    latest: dict[str, GatewayReport] = {}
    for report in reports:
        known = latest.get(report.gateway)
        if known is None or report.received_at >= known.received_at:
            latest[report.gateway] = report
    usable: list[tuple[GatewayReport, GatewayState, dict[ModelKey, ModelState]]] = []
    gaps: list[Fault] = []
    for report in latest.values():
        fault = _unusable(report, now, stale_after_s)
        if fault is not None or report.state is None:
            gaps.append(fault or _gap(report.gateway, FaultKind.MISSING, "it did not answer"))
        else:
            usable.append((report, report.state, {(m.namespace, m.name): m for m in report.state.models}))
    keys = {*models, *(key for _, _, by_key in usable for key in by_key)}
    return {key: _merge_one(key, usable, gaps, _Now(now, stale_after_s)) for key in sorted(keys)}


@dataclass(frozen=True)
class _Now:
    at: float
    stale_after_s: float


def _gap(gateway: str, kind: FaultKind, detail: str) -> Fault:
    return Fault(f"gateway {gateway}", "report", kind, detail)


def _unusable(report: GatewayReport, now: float, stale_after_s: float) -> Fault | None:
    if report.state is None:
        return _gap(report.gateway, FaultKind.MISSING, "it did not answer")
    age = now - report.received_at
    if not -SKEW_S <= age <= stale_after_s:
        return _gap(report.gateway, FaultKind.STALE, f"{age:.1f} s old")
    return None


def _merge_one(
    key: ModelKey,
    usable: Sequence[tuple[GatewayReport, GatewayState, Mapping[ModelKey, ModelState]]],
    gaps: Sequence[Fault],
    now: _Now,
) -> Sample:
    merging = _Merging(faults=list(gaps))
    for report, state, by_key in usable:
        model = by_key.get(key)
        if model is None:
            merging.faults.append(_gap(report.gateway, FaultKind.MISSING, "it does not know the model yet"))
        else:
            _add_gateway(merging, report, state, model, now)
    if not merging.gateways and not merging.faults:
        merging.faults.append(Fault("gateways", "report", FaultKind.MISSING, "there is no gateway"))
    engines = [
        engine
        for pod in sorted(merging.engines)
        if (engine := _engine(pod, *merging.engines[pod], merging.faults, now.stale_after_s)) is not None
    ]
    return Sample(
        at=now.at,
        classes=tuple(merging.classes[name] for name in sorted(merging.classes)),
        gateways=tuple(sorted(merging.gateways, key=lambda g: g.name)),
        engines=tuple(engines),
        faults=tuple(merging.faults),
    )


def _add_gateway(merging: _Merging, report: GatewayReport, state: GatewayState, model: ModelState, now: _Now) -> None:
    check = _Check(f"gateway {report.gateway}")
    age = max(0.0, now.at - report.received_at)
    counters = {}
    for item in model.classes:
        merging.classes[item.name] = _add_class(merging.classes.get(item.name), item, check)
        read = _counters(item, check)
        if read is not None:
            counters[item.name] = read
    for engine in model.engines:
        engine_age = None if engine.age_s is None else engine.age_s + age
        known = merging.engines.get(engine.pod)
        if known is None or _fresher(engine_age, known[0]):
            merging.engines[engine.pod] = (engine_age, engine)
    started = check.number("startedAt", state.started_at, now.at + MOST_SECONDS)
    idle = _idle(state, model, check)
    merging.gateways.append(GatewaySample(report.gateway, age, started or 0.0, idle, counters))
    merging.faults.extend(check.faults)


def _fresher(age: float | None, than: float | None) -> bool:
    return age is not None and age >= 0 and (than is None or not than >= 0 or age < than)


def _idle(state: GatewayState, model: ModelState, check: _Check) -> float:
    """Seconds for which the gateway knows that nothing arrived."""
    uptime = check.number("uptime", state.uptime_s, MOST_UPTIME_S)
    if uptime is None:
        return 0.0
    if model.last_request_age_s is None:
        return uptime
    last = check.number("lastRequestAge", model.last_request_age_s, uptime + SKEW_S)
    return 0.0 if last is None else min(last, uptime)


def _add_class(known: ClassSample | None, item: ClassState, check: _Check) -> ClassSample:
    queued = check.count(f"{item.name}.queued", item.queued)
    age = check.number(f"{item.name}.oldestAge", item.oldest_age_s, MOST_SECONDS) if queued else None
    known = known or ClassSample(name=item.name)
    ages = [a for a in (known.oldest_age_s, age) if a is not None]
    return ClassSample(
        name=item.name,
        queued=known.queued + queued,
        queued_tokens=known.queued_tokens + check.count(f"{item.name}.queuedTokens", item.queued_tokens, MOST_COUNTED),
        oldest_age_s=max(ages, default=None),
        in_flight=known.in_flight + check.count(f"{item.name}.inFlight", item.in_flight),
    )


def _counters(item: ClassState, check: _Check) -> Counters | None:
    """The class's counters; None if one of them cannot be used."""
    before = len(check.faults)
    outcomes = {
        name: check.count(f"{item.name}.outcomes.{name}", value, MOST_COUNTED)
        for name, value in sorted(item.outcomes.items())
    }
    read = Counters(
        good=outcomes.get("good", 0),
        offered=check.count(f"{item.name}.offered", item.offered, MOST_COUNTED),
        shed=outcomes.get("shed", 0),
        ended=sum(outcomes.values()),
        admitted=check.count(f"{item.name}.admitted", item.admitted, MOST_COUNTED),
        offered_tokens=check.count(f"{item.name}.offeredTokens", item.offered_tokens, MOST_COUNTED),
        answered=check.count(f"{item.name}.answered", item.answered.requests, MOST_COUNTED),
        prompt_tokens=check.count(f"{item.name}.promptTokens", item.answered.prompt_tokens, MOST_COUNTED),
        cached_tokens=check.count(f"{item.name}.cachedTokens", item.answered.cached_tokens, MOST_COUNTED),
        output_tokens=check.count(f"{item.name}.outputTokens", item.answered.output_tokens, MOST_COUNTED),
        attended_kilotokens=check.count(f"{item.name}.attended", item.answered.attended_kilotokens, MOST_COUNTED),
    )
    return read if len(check.faults) == before else None


def _engine(
    pod: str, age: float | None, report: EngineReport, faults: list[Fault], stale_after_s: float
) -> EngineSample | None:
    check = _Check(f"engine {pod}", faults)
    state = report.state
    if state is None or age is None:
        check.note("report", FaultKind.MISSING, "it has not reported")
        return None
    if not 0 <= age <= stale_after_s:
        check.note("report", FaultKind.STALE, f"{age:.1f} s old")
        return None
    waiting = check.count("waiting", state.waiting)
    return EngineSample(
        pod=pod,
        age_s=age,
        running=check.count("running", state.running),
        waiting=waiting,
        oldest_waiting_s=check.number("oldestWaiting", state.oldest_waiting_s, MOST_SECONDS) if waiting else None,
        total_pages=check.count("total", state.total, MOST_COUNTED),
        free_pages=check.count("free", state.free, MOST_COUNTED)
        + check.count("evictable", state.evictable, MOST_COUNTED),
        preemptions=check.count("preemptions", state.preemptions, MOST_COUNTED),
        page_tokens=state.model.page_tokens,
        step_times=state.step_times,
    )
