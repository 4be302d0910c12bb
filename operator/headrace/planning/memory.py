"""Memory fit: does a model with its context fit a rank's memory, and how many full-length sequences fit beside it?

budget = capacity x memoryPercent; pool = budget - weights - overhead, in whole pages of 64 tokens, of which page 0 is a
dummy. The arithmetic of a rank is `headrace_wire.memory`, which the engine sizes its pool with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.api.model import ModelSpec
from headrace.api.model_status import MemoryStatus
from headrace.api.profile import ProfileSpec
from headrace.api.quantities import byte_count, show_bytes
from headrace_wire.memory import Footprint, Load, budget_bytes, footprints, fullest
from headrace_wire.protocol import PAGE_TOKENS
from headrace_wire.shape import ModelShape

CPU_FIELD = "spec.pod.resources.limits.memory"
ACCELERATOR_FIELD = "spec.accelerator.memory"
MOST_SEQUENCES = 2**31 - 1  # that a status can say


class Verdict(str, Enum):
    """What the arithmetic says; the values are reasons of the condition MemoryFits."""

    FITS = "Fits"
    CAPACITY_UNKNOWN = "CapacityUnknown"
    WEIGHTS_TOO_LARGE = "WeightsTooLarge"
    CONTEXT_TOO_LARGE = "ContextTooLarge"
    CONTEXT_BEYOND_MODEL = "ContextBeyondModel"


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """The arithmetic on the fullest rank, in bytes unless said otherwise."""

    verdict: Verdict
    capacity: int | None  # of the accelerator, or the pod's memory limit; None: unlimited
    capacity_field: str  # of the Model, that says so
    needed: int  # capacity that one request of full length needs
    memory_percent: int
    footprint: Footprint
    max_tokens: int  # of one request, prompt + output
    trained_tokens: int  # longest sequence that the model was trained for
    pool_pages: int  # the dummy page included

    @property
    def usable_pages(self) -> int:
        """Pages that hold tokens."""
        return max(0, self.pool_pages - 1)

    @property
    def pages_per_sequence(self) -> int:
        """Pages of one request of full length."""
        return -(-self.max_tokens // PAGE_TOKENS)

    @property
    def pool(self) -> int:
        """Bytes of the pool of KV pages."""
        return self.pool_pages * self.footprint.page_bytes

    @property
    def full_length_sequences(self) -> int:
        """Requests of full length that fit at one time, at most MOST_SEQUENCES."""
        return min(self.usable_pages // self.pages_per_sequence, MOST_SEQUENCES)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits."""
        return self.usable_pages * PAGE_TOKENS

    @property
    def fits(self) -> bool | None:
        """None: not known."""
        return None if self.verdict is Verdict.CAPACITY_UNKNOWN else self.verdict is Verdict.FITS

    @property
    def message(self) -> str:
        """The verdict in a sentence with numbers."""
        return _SENTENCES[self.verdict](self)

    def as_status(self) -> MemoryStatus:
        """As it stands in a Model's status."""
        return MemoryStatus(
            capacity="" if self.capacity is None else show_bytes(self.capacity),
            weights=show_bytes(self.footprint.weights),
            kv_per_token=show_bytes(self.footprint.kv_per_token),
            overhead=show_bytes(self.footprint.overhead),
            kv_pool=show_bytes(self.pool),
            full_length_sequences=self.full_length_sequences,
        )


def _needs(fit: MemoryFit) -> str:
    part = fit.footprint
    return f"weights {show_bytes(part.weights)} + overhead {show_bytes(part.overhead)}"


def _budget(fit: MemoryFit) -> str:
    whole = fit.capacity or 0
    return f"{show_bytes(budget_bytes(whole, fit.memory_percent))} ({fit.memory_percent} % of {show_bytes(whole)})"


def _sequence(fit: MemoryFit) -> str:
    size = fit.pages_per_sequence * fit.footprint.page_bytes
    return f"one request of {fit.max_tokens} tokens needs {show_bytes(size)}"


def _say_fits(fit: MemoryFit) -> str:
    count = fit.full_length_sequences
    requests = "1 request" if count == 1 else f"{count} requests"
    return (
        f"{_needs(fit)} leave {show_bytes(fit.pool)} of {_budget(fit)} for KV: "
        f"{requests} of {fit.max_tokens} tokens at one time"
    )


def _say_unknown(fit: MemoryFit) -> str:
    return (
        f"{_needs(fit)}, and {_sequence(fit)}; {fit.capacity_field} is not set, so nothing bounds the engine: "
        f"set it to at least {_at_least(fit)}"
    )


def _say_weights(fit: MemoryFit) -> str:
    total = fit.footprint.weights + fit.footprint.overhead
    return (
        f"{_needs(fit)} need {show_bytes(total)}, which leaves no page of KV in {_budget(fit)}: "
        f"{_raise(fit)}, or lower spec.engine.maxBatchTokens or spec.engine.maxSequences (they make the overhead), "
        "or serve a smaller model"
    )


def _say_context(fit: MemoryFit) -> str:
    return (
        f"{_needs(fit)} leave {show_bytes(fit.pool)} of {_budget(fit)} for KV, but {_sequence(fit)}; "
        f"at most {fit.longest} tokens fit: lower spec.context.maxTokens to that, or {_raise(fit)}"
    )


def _say_beyond(fit: MemoryFit) -> str:
    return (
        f"spec.context.maxTokens {fit.max_tokens} exceeds the {fit.trained_tokens} tokens that the model was trained "
        "for: lower it to that, or leave it out"
    )


def _at_least(fit: MemoryFit) -> str:
    """Whole mebibytes, rounded up: what may stand in the field as it is."""
    return f"{-(-fit.needed // 2**20)}Mi"


def _raise(fit: MemoryFit) -> str:
    return f"raise {fit.capacity_field} to at least {_at_least(fit)}"


_SENTENCES = {
    Verdict.FITS: _say_fits,
    Verdict.CAPACITY_UNKNOWN: _say_unknown,
    Verdict.WEIGHTS_TOO_LARGE: _say_weights,
    Verdict.CONTEXT_TOO_LARGE: _say_context,
    Verdict.CONTEXT_BEYOND_MODEL: _say_beyond,
}


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory that a rank may use, and what it must hold beside the weights."""

    capacity: int | None  # bytes; None: unlimited
    memory_percent: int = 90
    max_tokens: int | None = None  # of one request; None: what the model was trained for
    field: str = CPU_FIELD  # of the Model, that gives the capacity


def fit(shape: ModelShape, load: Load, room: Room) -> MemoryFit:
    """Memory fit of a model. Raises ParallelismError if it cannot be split as `load` says."""
    budget = 0 if room.capacity is None else budget_bytes(room.capacity, room.memory_percent)
    footprint = fullest(shape, load, budget)
    max_tokens = shape.max_positions if room.max_tokens is None else room.max_tokens
    pages = footprint.pages(budget)
    return MemoryFit(
        verdict=_verdict(shape, room, max_tokens, pages),
        capacity=room.capacity,
        capacity_field=room.field,
        needed=_capacity_for(footprints(shape, load), max_tokens, room.memory_percent),
        memory_percent=room.memory_percent,
        footprint=footprint,
        max_tokens=max_tokens,
        trained_tokens=shape.max_positions,
        pool_pages=pages,
    )


def _capacity_for(stages: Sequence[Footprint], max_tokens: int, memory_percent: int) -> int:
    """The least capacity whose budget holds weights, overhead, the dummy page and one request, on every stage."""
    pages = -(-max_tokens // PAGE_TOKENS) + 1
    budget = max(stage.weights + stage.overhead + pages * stage.page_bytes for stage in stages)
    return -(-budget * 100 // memory_percent)


def _verdict(shape: ModelShape, room: Room, max_tokens: int, pages: int) -> Verdict:
    if max_tokens > shape.max_positions:
        return Verdict.CONTEXT_BEYOND_MODEL
    if room.capacity is None:
        return Verdict.CAPACITY_UNKNOWN
    if pages <= 1:
        return Verdict.WEIGHTS_TOO_LARGE
    if (pages - 1) * PAGE_TOKENS < max_tokens:
        return Verdict.CONTEXT_TOO_LARGE
    return Verdict.FITS


def load_of(spec: ModelSpec, profile: ProfileSpec | None) -> Load:
    """How an engine runs this model; without a profile, on one rank."""
    return Load(
        dtype=spec.precision.dtype,
        tensor=profile.tensor if profile else 1,
        pipeline=profile.pipeline if profile else 1,
        max_sequences=spec.engine.max_sequences,
        max_batch_tokens=spec.engine.max_batch_tokens,
        accelerator=spec.accelerator is not None,
    )


def room_of(spec: ModelSpec) -> Room:
    """A rank's memory: the accelerator's, or on a CPU the container's memory limit."""
    accelerator = spec.accelerator
    capacity = byte_count(accelerator.memory) if accelerator else spec.pod.memory_limit()
    return Room(
        capacity=capacity,
        memory_percent=spec.engine.memory_percent,
        max_tokens=spec.context.max_tokens,
        field=ACCELERATOR_FIELD if accelerator else CPU_FIELD,
    )


def fit_model(spec: ModelSpec, profile: ProfileSpec | None, shape: ModelShape) -> MemoryFit:
    """Memory fit of a Model on its profile. Raises ParallelismError."""
    return fit(shape, load_of(spec, profile), room_of(spec))
