"""What reconcile and the scaling loop tell each other: one process, one event loop, no locks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.api.gateway_state import EngineReport, GatewayState
from headrace.cluster.resources import Key
from headrace.planning.live import ClassFigures
from headrace.planning.status import ScalingView
from headrace.scaling.recall import Point
from headrace_wire.shape import ModelShape


@dataclass
class ModelNotes:
    """What is known of one Model beyond its objects."""

    decision: int | None = None  # replicas that the autoscaler decided on, since this leader began
    other_manager: str | None = None  # who else owns .spec.replicas of the Deployment, at the last reconcile
    rival: str = ""  # that manager in words, as last told
    refused: bool = False  # the Model is stalled: what is decided would not be applied
    scaling: ScalingView = field(default_factory=ScalingView)
    figures: tuple[ClassFigures, ...] = ()
    engines: tuple[EngineReport, ...] = ()
    history: str = ""  # attainment over the objective's window, in words
    young: bool = False  # its load is known for a minute or more, and not for long: what was before would help
    past: tuple[Point, ...] = ()  # the load of before, as Prometheus has it; taken by the scaling loop
    shapes: dict[str, ModelShape] = field(default_factory=dict)  # by source URI, as init containers found them
    ready: tuple[str, str] | None = None  # status and reason of the condition Ready, as last seen


@dataclass(frozen=True)
class GatewayView:
    """One gateway at the last poll; `state` None: it did not answer."""

    name: str
    ready: bool  # by its EndpointSlice
    state: GatewayState | None


@dataclass
class Notes:
    """The leader's memory; a follower's is empty."""

    models: dict[Key, ModelNotes] = field(default_factory=dict)
    gateways: tuple[GatewayView, ...] = ()

    def of(self, key: Key) -> ModelNotes:
        """The notes of one Model, made at first use."""
        return self.models.setdefault(key, ModelNotes())

    def keep(self, keys: Iterable[Key]) -> None:
        """Forget the Models that are gone."""
        wanted = set(keys)
        self.models = {key: notes for key, notes in self.models.items() if key in wanted}

    def clear(self) -> None:
        """Forget all: leadership was lost, others decide now."""
        self.models.clear()
        self.gateways = ()
