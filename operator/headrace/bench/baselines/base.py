"""What a baseline is: a rule from what is observed to a number of replicas, for many lanes and parameter sets at
once."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.bench.demand import Demand
from headrace.bench.fluid import Observed
from headrace.bench.profile import Profile
from headrace.bench.trace import Floats

Parameters = Mapping[str, float]


@dataclass(frozen=True)
class Setting:
    """What a rule may know of its lanes, shape (lanes,) each. All of it is in a deployment's own configuration or
    profile; nothing is of the future."""

    dt: float
    slots: Floats  # requests that a replica runs at one time
    rho_cap: Floats  # its capacity at the targets, from a profile
    kv_tokens: float  # KV pool of a replica
    step_s: float  # fixed part of a step
    tpot_s: Floats
    ttft_s: Floats
    profile: Profile


class Baseline(ABC):
    """One rule. `defaults` are those that its project documents; `grid` is what hindsight may choose from."""

    name: ClassVar[str]
    defaults: ClassVar[Parameters]
    grid: ClassVar[Mapping[str, Sequence[float]]]

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        self.setting = setting
        self.p = {name: np.array([float(p[name]) for p in parameters]) for name in self.defaults}

    @abstractmethod
    def decide(self, seen: Observed) -> Floats | None:
        """The number of replicas wanted after this step, shape (lanes,); None: it does not look now."""

    @classmethod
    def choices(cls) -> list[dict[str, float]]:
        """The defaults first, then every point of the grid."""
        points = [dict(zip(cls.grid, point, strict=True)) for point in itertools.product(*cls.grid.values())]
        return [dict(cls.defaults), *({**cls.defaults, **point} for point in points)]

    @classmethod
    def prepare(cls, demand: Demand, rho_cap: float) -> list[dict[str, float]]:
        """The parameter sets for a demand; only a rule that is static looks at it."""
        return cls.choices()

    def due(self, seen: Observed, every_s: float) -> bool:
        """True in the step that ends a period."""
        return round(seen.now / seen.dt) % max(1, round(every_s / seen.dt)) == 0
