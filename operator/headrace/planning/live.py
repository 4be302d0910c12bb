"""Live figures in a status: written seldom, and only when they say something new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headrace.api.model_status import ClassStatus
from headrace.api.quantities import seconds, show_seconds
from headrace.api.slo import ServiceClass, SloSpec

WRITE_EVERY_S = 15.0
MOVED = 0.10  # of the larger of the figure and its target; for percentages, points of 100


@dataclass(frozen=True)
class ClassFigures:
    """How one class fares now; None = unknown."""

    name: str
    goodput: float | None = None  # good / offered of the last minutes
    queue_age_s: float | None = None  # None: nothing queued, or not known


def class_statuses(
    previous: Sequence[ClassStatus], figures: Sequence[ClassFigures], slo: SloSpec, now: datetime
) -> list[ClassStatus]:
    """The figures to show: the previous ones unless one moved enough and they are old enough."""
    targets = {c.name: c for c in slo.classes}
    known = [f for f in figures if f.name in targets]
    before = {status.name: status for status in previous}
    kept = [before[name] for name in targets if name in before]
    if not known or not any(_moved(before.get(f.name), f, targets[f.name]) for f in known):
        return kept
    newest = max((datetime.fromisoformat(s.as_of) for s in kept if s.as_of), default=None)
    if newest is not None and (now - newest).total_seconds() < WRITE_EVERY_S:
        return kept
    fresh = {f.name: _shown(f, now) for f in known}
    merged = {**before, **fresh}
    return [merged[name] for name in targets if name in merged]


def _shown(figures: ClassFigures, now: datetime) -> ClassStatus:
    age = round(figures.queue_age_s or 0.0, 3)
    return ClassStatus(
        name=figures.name,
        goodput_percent=None if figures.goodput is None else max(0, min(100, int(figures.goodput * 100))),
        queue_age=show_seconds(age) if age else "0s",
        as_of=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _moved(before: ClassStatus | None, now: ClassFigures, target: ServiceClass) -> bool:
    if before is None:
        return now.goodput is not None or now.queue_age_s is not None
    percent = None if now.goodput is None else now.goodput * 100
    if percent is None or before.goodput_percent is None:
        goodput_moved = (percent is None) != (before.goodput_percent is None) and percent is not None
    else:
        goodput_moved = _changed(before.goodput_percent, percent, target.objective_percent, 100.0)
    age = now.queue_age_s or 0.0
    old_age = _age(before.queue_age)
    emptied = old_age > 0.0 and age == 0.0
    return (
        goodput_moved
        or emptied
        or _changed(old_age, age, target.max_queue_age_s, max(old_age, age, target.max_queue_age_s))
    )


def _changed(before: float, now: float, target: float, scale: float) -> bool:
    crossed = (before < target) != (now < target)
    return crossed or abs(now - before) >= MOVED * scale


def _age(text: str | None) -> float:
    """Seconds of a shown age, such as 310ms or 1.25s."""
    if not text:
        return 0.0
    for unit, size in (("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * size
    return seconds(text)
