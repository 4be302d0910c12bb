"""Kubernetes HorizontalPodAutoscaler, `autoscaling/v2`: on requests in flight, and through KEDA on waiting requests.

desired = ceil(current * value / target), nothing within 10 %; every 15 s; up at most the larger of double and 4 pods in
15 s; down to the largest recommendation of the last 300 s. Pods that are not ready count as having the value 0 on
the way up (so pending replicas are supply). An AverageValue target on one external number gives ceil(value / target).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.bench.baselines.base import Baseline, Parameters, Setting
from headrace.bench.baselines.history import Maxima
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats

SYNC_S = 15.0
TOLERANCE = 0.1
UP_PODS = 4.0


def recommend(current: Floats, total: Floats, target: Floats) -> Floats:
    """HPA's formula for an average value: `total` over all pods, `target` for each."""
    ratio = total / np.maximum(current * target, 1e-9)
    return np.where(np.abs(ratio - 1.0) <= TOLERANCE, current, np.ceil(total / target - 1e-9))


def limit_up(current: Floats, wanted: Floats) -> Floats:
    """The default policies for one period of 15 s."""
    return np.minimum(wanted, np.maximum(2 * current, current + UP_PODS))


class Hpa(Baseline):
    """On requests in flight at the gateway (queued ones included) for each replica; target 70 % of its slots."""

    name = "hpa-in-flight"
    defaults = {"target": 0.7, "down": 300.0}
    grid = {
        "target": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "down": (60.0, 180.0, 300.0, 600.0),
    }

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        super().__init__(parameters, setting)
        self._down = Maxima(self.p["down"], SYNC_S)

    def total(self, seen: Observed) -> Floats:
        """The metric over all pods."""
        return seen.in_flight + seen.queued

    def target(self) -> Floats:
        """For one pod."""
        return self.p["target"] * self.setting.slots

    def decide(self, seen: Observed) -> Floats | None:
        if not self.due(seen, SYNC_S):
            return None
        wanted = limit_up(seen.current, recommend(seen.current, self.total(seen), self.target()))
        held = self._down.add(wanted)
        return np.maximum(1.0, np.where(wanted > seen.current, wanted, np.minimum(held, seen.current)))


class Keda(Hpa):
    """`vllm:num_requests_waiting`, summed, with a threshold of 5 for each replica, as in the projects' samples."""

    name = "keda-waiting"
    defaults = {"target": 5.0, "down": 300.0, "floor": 1.0}
    grid = {
        "target": (1.0, 2.0, 5.0, 10.0, 20.0),
        "down": (60.0, 300.0, 600.0, 1200.0),
        "floor": (1.0, 3.0, 6.0, 9.0, 12.0),
    }

    def total(self, seen: Observed) -> Floats:
        return seen.queued

    def target(self) -> Floats:
        return self.p["target"]

    def decide(self, seen: Observed) -> Floats | None:
        wanted = super().decide(seen)
        return None if wanted is None else np.maximum(wanted, self.p["floor"])
