"""The words of scaling: policy, sample, replicas, memory and decision. Frozen structs that encode as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

import msgspec

from headrace.api.model import Model
from headrace.api.slo import BUILTIN_SLO, ServiceLevelObjective
from headrace.scaling.rehearsal import FIRST_PRICE, Choice
from headrace_wire.protocol import StepTimes

ModelKey = tuple[str, str]
"""(namespace, name)."""


class Reason(str, Enum):
    """Why a decision is what it is; its value stands in conditions, Events and status."""

    STEADY = "Steady"  # the present number fits
    FORECAST = "Forecast"  # the expected load takes more, or no longer takes so many
    QUEUE_AGE = "QueueAge"  # requests wait longer than their class allows, or are about to
    GOODPUT = "Goodput"  # full batches miss their targets
    FROM_ZERO = "FromZero"  # a request waits and nothing runs
    UNDERUSED = "Underused"  # one replica fewer has sufficed for long enough
    TO_ZERO = "ToZero"  # every gateway proves that nothing was asked for
    MIN_REPLICAS = "MinReplicas"
    MAX_REPLICAS = "MaxReplicas"
    SCHEDULE = "Schedule"  # an open window's bounds
    OVERRIDE = "Override"  # the number that was set by hand, until it expires
    BUDGET = "Budget"  # the namespace's quota or the nodes' room has no more for this Model
    UNSCHEDULABLE = "Unschedulable"  # the cluster has no room
    COOLDOWN = "Cooldown"  # the last change is too young
    NO_DATA = "NoData"  # nothing was ever seen
    STALE = "Stale"  # the newest whole sample is too old
    INCOMPLETE = "Incomplete"  # an input is missing or implausible
    WARMING_UP = "WarmingUp"  # no full window has been seen yet


class ClassPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one class demands."""

    name: str
    priority: int = 0
    max_queue_age_s: float
    ttft_s: float
    objective_percent: int
    tpot_s: float | None = None  # None: not told


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that hold for a time in place of the spec's own."""

    by: str  # schedule or override
    detail: str  # which one, with its window or end
    min_replicas: int  # the spec's own
    max_replicas: int


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for one Model. Durations are seconds."""

    min_replicas: int
    max_replicas: int
    max_sequences: int  # requests that one replica runs at one time
    down_after_s: float
    to_zero_after_s: float
    classes: tuple[ClassPolicy, ...]
    stale_after_s: float = 5.0  # an older sample decides nothing; longer holes break a window
    goodput_window_s: float = 60.0
    goodput_min_offered: int = 10  # fewer offered requests say nothing
    down_load_percent: int = 80  # of the slots that would be left
    up_interval_s: float = 5.0  # between two steps up
    down_interval_s: float = 15.0  # between two steps down
    unschedulable_lease_s: float = 180.0  # growth that finds no node for so long is returned
    retry_growth_s: float = 120.0  # first back-off after returned growth; doubles
    retry_growth_max_s: float = 1800.0
    stuck_after_s: float = 600.0  # a replica still not ready then no longer delays others' removal
    ordered: Ordered | None = None  # whose bounds `min_replicas` and `max_replicas` are, if not the spec's own

    @classmethod
    def of(cls, model: Model, slo: ServiceLevelObjective | None, at: float | None = None) -> Policy:
        """The policy of a Model with its ServiceLevelObjective (None: the built-in one), at a time in unix seconds
        (None: whatever the schedules and the override say)."""
        scaling = model.spec.scaling
        own, bounds = scaling.bounds(), scaling.bounds(at)
        classes = (slo.spec if slo is not None else BUILTIN_SLO).classes
        return cls(
            min_replicas=bounds.least,
            max_replicas=bounds.most,
            max_sequences=model.spec.engine.max_sequences,
            down_after_s=scaling.down_after_s,
            to_zero_after_s=scaling.to_zero_after_s,
            classes=tuple(
                ClassPolicy(
                    name=c.name,
                    priority=c.priority,
                    max_queue_age_s=c.max_queue_age_s,
                    ttft_s=c.ttft_s,
                    objective_percent=c.objective_percent,
                    tpot_s=c.tpot_s,
                )
                for c in classes
            ),
            ordered=Ordered(by=bounds.by, detail=bounds.detail, min_replicas=own.least, max_replicas=own.most)
            if bounds.by
            else None,
        )

    @property
    def bounds(self) -> str:
        """Fewest and most, in words."""
        by = f" by {self.ordered.detail}" if self.ordered is not None else ""
        return f"minReplicas {self.min_replicas}, maxReplicas {self.max_replicas}{by}"

    def plain(self) -> Policy:
        """The same with the spec's own bounds."""
        if self.ordered is None:
            return self
        own = self.ordered
        return msgspec.structs.replace(self, min_replicas=own.min_replicas, max_replicas=own.max_replicas, ordered=None)


class FaultKind(str, Enum):
    """How an input is not a number to act on. Zero is none of these."""

    MISSING = "missing"
    STALE = "stale"
    NAN = "NaN"
    NEGATIVE = "negative"
    HUGE = "implausibly large"
    WENT_BACK = "a counter that went back"


class Fault(msgspec.Struct, frozen=True):
    """One input that cannot be used, and why."""

    source: str  # "gateway NAME" or "engine POD"
    input: str  # name of the field, or "report"
    kind: FaultKind
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.input} of {self.source} is {self.kind.value}"
        return f"{text} ({self.detail})" if self.detail else text


class Counters(msgspec.Struct, frozen=True):
    """Of one class on one gateway, since that gateway's `started_at`; also used for differences of these."""

    good: int = 0
    offered: int = 0
    shed: int = 0
    ended: int = 0
    admitted: int = 0
    offered_tokens: int = 0
    answered: int = 0  # good or late, and told with their tokens:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts', found in a prefix cache
    output_tokens: int = 0
    attended_kilotokens: int = 0  # thousands that computed prompt tokens attend to


class ClassSample(msgspec.Struct, frozen=True, kw_only=True):
    """One class, summed over the gateways that answered."""

    name: str
    queued: int = 0  # requests not yet dispatched
    queued_tokens: int = 0
    oldest_age_s: float | None = None  # of the oldest undispatched request; None: nothing queued
    in_flight: int = 0  # dispatched, not ended


class GatewaySample(msgspec.Struct, frozen=True):
    """What is kept apart by gateway."""

    name: str
    age_s: float  # of its report
    started_at: float  # unix seconds
    idle_s: float  # since its last request arrived; since its start if there was none
    counters: dict[str, Counters] = {}  # by class


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """The freshest report of one engine."""

    pod: str
    age_s: float
    running: int
    waiting: int
    oldest_waiting_s: float | None = None
    total_pages: int = 0
    free_pages: int = 0  # free and evictable
    preemptions: int = 0
    page_tokens: int = 0  # of one page; 0: not told
    step_times: StepTimes | None = None  # as the engine tells them, whatever they are


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateways know of one Model at one time. Sums are lower bounds where `faults` names a gap."""

    at: float  # unix seconds
    classes: tuple[ClassSample, ...] = ()
    gateways: tuple[GatewaySample, ...] = ()
    engines: tuple[EngineSample, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def complete(self) -> bool:
        """True where every gateway and engine gave every input."""
        return bool(self.gateways) and not self.faults

    @property
    def queued(self) -> int:
        """Requests not yet dispatched."""
        return sum(c.queued for c in self.classes)

    @property
    def in_flight(self) -> int:
        """Requests dispatched and not ended; an engine knows of those that come past the gateways, too."""
        return max(sum(c.in_flight for c in self.classes), sum(e.running + e.waiting for e in self.engines))

    @property
    def waiting(self) -> int:
        """Requests that engines have and have not begun."""
        return sum(e.waiting for e in self.engines)

    @property
    def engine_wait_s(self) -> float | None:
        """Age of the oldest request that waits inside an engine; None: none waits."""
        return max((e.oldest_waiting_s for e in self.engines if e.oldest_waiting_s is not None), default=None)


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a Model may have of what it shares with others; given only where it wants more."""

    most: int
    detail: str  # what is short, and who has it


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one Model, from Kubernetes."""

    current: int  # spec.replicas of the workload
    ready: int = 0
    pending: int = 0  # wanted and not ready, unschedulable ones included
    unschedulable: int = 0  # of `pending`: the scheduler found no node
    terminating: int = 0
    changed_at: float | None = None  # unix seconds, when `current` last changed; None: unknown
    cold_start_s: float | None = None  # measured, pod creation to ready; None: never measured
    allowed: Allowed | None = None  # None: nothing that is shared binds


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Growth that the cluster had no room for."""

    ceiling: int  # replicas that did fit
    until: float  # unix seconds, no second try before
    tries: int = 1


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision hands to the next; lost at a restart, which only makes the next ones more careful."""

    unschedulable_since: float | None = None
    refused: Refused | None = None
    up_at: float | None = None  # last step up
    down_at: float | None = None  # last step down
    choice: Choice = Choice()  # the way to forecast
    chosen_at: float | None = None  # when it was looked at last
    price: float = FIRST_PRICE  # of a late request, over what it takes of a replica
    fill: float = 1.0  # of what a replica takes, that it is given
    settled_at: float | None = None  # a step down that no forecast had part in: load before it asks for nothing


class Candidate(msgspec.Struct, frozen=True):
    """One rule's answer; `replicas` None: the rule has no opinion, `detail` says why."""

    name: str
    replicas: int | None
    detail: str


class Guard(msgspec.Struct, frozen=True):
    """A bound that changed the answer: `effect` says from what to what, `detail` why."""

    name: str
    effect: str
    detail: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas there should be, and why."""

    at: float  # unix seconds
    current: int
    replicas: int
    reason: Reason
    winner: str  # name of one of the candidates
    candidates: tuple[Candidate, ...]
    guards: tuple[Guard, ...] = ()
    inputs: dict[str, int | float | str | None] = {}
    memory: Memory = Memory()

    @property
    def changes(self) -> bool:
        """True where the number of replicas is to change."""
        return self.replicas != self.current

    @property
    def message(self) -> str:
        """The decision in a sentence with numbers."""
        detail = next(c.detail for c in self.candidates if c.name == self.winner)
        verb = f"{self.current} → {self.replicas} replicas" if self.changes else f"stays at {self.current}"
        text = f"{verb} ({self.reason.value}): {detail}"
        for guard in self.guards:
            text += f"; {guard.name}: {guard.effect}, {guard.detail}"
        return text

    def as_status(self) -> dict[str, object]:
        """For `status.scaling.lastDecisions`: integers and strings only."""
        return {
            "at": iso(self.at),
            "from": self.current,
            "to": self.replicas,
            "reason": self.reason.value,
            "message": self.message,
            "winner": self.winner,
            "candidates": [_candidate_status(c) for c in self.candidates],
            "guards": [{"name": g.name, "effect": g.effect, "detail": g.detail} for g in self.guards],
        }


def _candidate_status(candidate: Candidate) -> dict[str, object]:
    number: Mapping[str, object] = {} if candidate.replicas is None else {"replicas": candidate.replicas}
    return {"name": candidate.name, **number, "detail": candidate.detail}


def iso(at: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
