"""Bounds of the number of replicas that hold at certain times: schedules, and a manual override that expires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Annotated, ClassVar, Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from headrace.api.cel import Form, Rule
from headrace.api.common import ApiType, Name

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
CLOCK_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
ZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
Clock = Annotated[
    str, Field(max_length=5), Form(CLOCK_PATTERN, "must be a time of the wall clock as HH:MM, 00:00 to 23:59")
]
Zone = Annotated[str, Field(max_length=64), Form(ZONE_PATTERN, "must be an IANA time zone, such as Europe/Berlin")]
Bound = Annotated[int, Field(ge=0, le=1000)]


class Schedule(ApiType):
    """Other bounds while a daily window is open."""

    name: Name = Field(description="What decisions call it.")
    days: Annotated[list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]], Field(max_length=7)] = Field(
        default_factory=list,
        description="Days on which the window opens. Absent: every day.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    start: Clock = Field(description="When the window opens, as HH:MM of the wall clock.")
    end: Clock = Field(
        description="When it closes; not later than start: on the next day. Equal to start: after a whole day."
    )
    time_zone: Zone = Field(
        "UTC", description="IANA time zone of both, such as Europe/Berlin; its daylight saving time is followed."
    )
    min_replicas: Bound | None = Field(None, description="Fewest replicas meanwhile. Absent: scaling.minReplicas.")
    max_replicas: Bound | None = Field(None, description="Most replicas meanwhile. Absent: scaling.maxReplicas.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.minReplicas) || has(self.maxReplicas)",
            "a schedule says minReplicas, maxReplicas or both",
            holds=lambda schedule: (schedule.min_replicas, schedule.max_replicas) != (None, None),
        ),
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            field=".minReplicas",
            holds=lambda schedule: (
                None in (schedule.min_replicas, schedule.max_replicas) or schedule.min_replicas <= schedule.max_replicas
            ),
        ),
    )

    @property
    def zone(self) -> tzinfo | None:
        """The time zone; None where this machine knows none of that name."""
        if self.time_zone == "UTC":
            return UTC
        try:
            return ZoneInfo(self.time_zone)
        except (LookupError, ValueError, OSError):
            return None

    def open(self, at: float) -> bool:
        """True while the window is open; `at` in unix seconds. A window of an unknown time zone never opens."""
        zone = self.zone
        if zone is None:
            return False
        local = datetime.fromtimestamp(at, zone)
        clock, today = f"{local:%H:%M}", local.weekday()
        if self.start < self.end:
            return self._on(today) and self.start <= clock < self.end
        return (self._on(today) and clock >= self.start) or (self._on(today - 1) and clock < self.end)

    def _on(self, weekday: int) -> bool:
        return not self.days or DAYS[weekday % 7] in self.days

    def __str__(self) -> str:
        days = " ".join(day for day in DAYS if day in self.days) or "daily"
        return f"schedule {self.name} ({days} {self.start} to {self.end} {self.time_zone})"


class Override(ApiType):
    """A number of replicas by hand, which ends by itself."""

    replicas: Bound = Field(
        description="Exactly so many under the modes Auto and Advise, whatever bounds and schedules say."
    )
    until: str = Field(
        description="When it ends, RFC 3339; nothing need be written then.", json_schema_extra={"format": "date-time"}
    )

    @property
    def ends_at(self) -> float | None:
        """Unix seconds; None where `until` is no time with a zone."""
        try:
            until = datetime.fromisoformat(self.until)
        except ValueError:
            return None
        return None if until.tzinfo is None else until.timestamp()

    def holds(self, at: float) -> bool:
        """True before its end."""
        ends = self.ends_at
        return ends is not None and at < ends

    def __str__(self) -> str:
        return f"override to {self.replicas} until {self.until}"


@dataclass(frozen=True)
class Bounds:
    """Fewest and most replicas at one time. `by`: schedule or override; "" for the spec's own."""

    least: int
    most: int
    by: str = ""
    detail: str = ""  # which one, with its window or end

    def clamp(self, replicas: int) -> int:
        """The nearest allowed number."""
        return max(self.least, min(replicas, self.most))


def bounds_at(own: Bounds, schedules: Sequence[Schedule], override: Override | None, at: float) -> Bounds:
    """What holds at `at` (unix seconds): an override, else what is open, else `own`.

    Of several open windows the largest minReplicas and the largest maxReplicas hold.
    """
    if override is not None and override.holds(at):
        return Bounds(override.replicas, override.replicas, "override", str(override))
    found = [schedule for schedule in schedules if schedule.open(at)]
    if not found:
        return own
    least = max(own.least if s.min_replicas is None else s.min_replicas for s in found)
    most = max(own.most if s.max_replicas is None else s.max_replicas for s in found)
    return Bounds(least, max(least, most), "schedule", ", ".join(map(str, found)))


def problems(schedules: Sequence[Schedule], override: Override | None) -> Iterator[str]:
    """What no schema can check, each with the path of its field."""
    for index, schedule in enumerate(schedules):
        if schedule.zone is None:
            yield (
                f"spec.scaling.schedules[{index}].timeZone: {schedule.time_zone!r} is no time zone that is known here; "
                "write a name of the IANA database, for example Europe/Berlin, or UTC"
            )
    if override is not None and override.ends_at is None:
        yield f"spec.scaling.override.until: {override.until!r} is no time such as 2027-06-01T18:00:00Z"
