"""llm-d's workload-variant-autoscaler, saturation analyser of the second version: supply and demand in tokens.

capacity = min(k1, k2) of a replica: k1 = 0.8 of the KV pool; k2 (compute) = tokens in use seen while requests queue
(mean of the last ten), before that slots times the mean request. demand = tokens in use + waiting prompts + expected
outputs of the queue. Up by ceil(missing / capacity) where demand / upThreshold exceeds the supply, pending replicas
included; down where the supply of ready ones exceeds demand / downBoundary by a whole replica and nothing is pending.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.bench.baselines.base import Baseline, Parameters, Setting
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats

KV_SHARE = 0.8
LEARNING = 0.1  # a rolling mean of about ten observations


class Wva(Baseline):
    """Thresholds 0.85 and 0.70 and a period of 30 s."""

    name = "wva-saturation"
    defaults = {"up": 0.85, "down": 0.7, "every": 30.0}
    grid = {
        "up": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "down": (0.4, 0.5, 0.6, 0.7, 0.8),
        "every": (15.0, 30.0, 60.0),
    }

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        super().__init__(parameters, setting)
        self._learned = np.zeros(len(parameters))

    def decide(self, seen: Observed) -> Floats | None:
        capacity = self._capacity(seen)
        index = round(seen.now / seen.dt)
        due = index % np.maximum(1, np.round(self.p["every"] / seen.dt)) == 0
        if not due.any():
            return None
        demand = seen.in_flight * seen.held_tokens + seen.queued_tokens + seen.queued * seen.mean_output
        missing = demand / self.p["up"] - seen.current * capacity
        spare = seen.ready * capacity - demand / np.minimum(self.p["down"], self.p["up"])
        up = seen.current + np.ceil(missing / capacity - 1e-9)
        fewer = np.maximum(1.0, seen.current - np.floor(spare / capacity + 1e-9))
        wanted = np.where(missing > 0, up, np.where((spare >= capacity) & (seen.pending <= 0), fewer, seen.current))
        return np.where(due, wanted, seen.current)

    def _capacity(self, seen: Observed) -> Floats:
        setting = self.setting
        derived = setting.slots * seen.held_tokens
        busy = (seen.queued > 5 * seen.ready) & (seen.ready > 0)
        use = seen.in_flight * seen.held_tokens / np.maximum(1.0, seen.ready)
        first = np.where(self._learned > 0, self._learned, derived)
        self._learned = np.where(busy, first + LEARNING * (use - first), self._learned)
        compute = np.where(self._learned > 0, self._learned, derived)
        return np.maximum(1.0, np.minimum(KV_SHARE * setting.kv_tokens, compute))
