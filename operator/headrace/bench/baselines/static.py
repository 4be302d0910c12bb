"""A fixed number of replicas, sized for the busiest minute with perfect knowledge of it."""

from __future__ import annotations

import numpy as np

from headrace.bench.baselines.base import Baseline
from headrace.bench.demand import Demand
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats


class Static(Baseline):
    """The default is the peak over 60 s; hindsight takes the fewest that meet the objective."""

    name = "static-peak"
    defaults = {"replicas": 1.0}
    grid = {"replicas": (1.0,)}

    @classmethod
    def prepare(cls, demand: Demand, rho_cap: float) -> list[dict[str, float]]:
        peak = float(np.ceil(demand.peak_work() / rho_cap))
        return [{"replicas": r} for r in (peak, *np.unique(np.ceil(peak * np.linspace(0.3, 1.6, 40))))]

    def decide(self, seen: Observed) -> Floats | None:
        return self.p["replicas"]
