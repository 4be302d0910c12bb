"""Dynamo's SLA planner for aggregated serving: a slow loop that sets a floor, and a fast one above it.

Slow (180 s): forecast of requests and lengths over the coming interval (constant, or Kalman-like level and trend)
over the profile's capacity at the targets, rounded up, is the floor. Fast (5 s), only while no scaling is
unfinished: one more replica where the estimated TTFT or ITL misses its target; one fewer where, with N / (N - 1)
times the load on each, ITL stays below 0.8 of its target, the queue's part of TTFT is below 0.8 of what the own
prefill leaves, and KV fits; never below the floor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.bench.baselines.base import Baseline, Parameters, Setting
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats

LOAD_S = 5.0
LEVEL, TREND = 0.6, 0.2  # gains of the level-and-trend forecaster


class Dynamo(Baseline):
    """Interval 180 s, sensitivity of scale-down 0.8, trend forecast on."""

    name = "dynamo-planner"
    defaults = {"interval": 180.0, "down": 0.8, "trend": 1.0, "margin": 1.0}
    grid = {
        "interval": (60.0, 180.0, 600.0),
        "down": (0.6, 0.8, 0.9),
        "trend": (0.0, 1.0),
        "margin": (0.8, 0.9, 1.0, 1.1, 1.25, 1.5),
    }

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        super().__init__(parameters, setting)
        lanes = len(parameters)
        self._arrived = np.zeros(lanes)
        self._level, self._slope = np.full(lanes, np.nan), np.zeros(lanes)
        self._floor = np.ones(lanes)

    def decide(self, seen: Observed) -> Floats | None:
        self._arrived += seen.work
        slow = round(seen.now / seen.dt) % np.maximum(1, np.round(self.p["interval"] / seen.dt)) == 0
        if slow.any():
            self._forecast(slow)
        if not slow.any() and not self.due(seen, LOAD_S):
            return None
        steady = seen.pending <= 0
        wanted = np.where(steady, self._load(seen), seen.current)
        return np.maximum(wanted, np.where(slow | steady, self._floor, seen.current))

    def _forecast(self, slow: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        rate = self._arrived / self.p["interval"]
        first = slow & np.isnan(self._level)
        predicted = np.where(np.isnan(self._level), rate, self._level + self._slope)
        level = predicted + LEVEL * (rate - predicted)
        slope = self._slope + TREND * (level - np.where(first, level, self._level) - self._slope)
        self._level = np.where(slow, np.where(first, rate, level), self._level)
        self._slope = np.where(slow & ~first, slope, self._slope)
        coming = np.maximum(0.0, self._level + self.p["trend"] * self._slope) * self.p["margin"]
        self._floor = np.where(slow, np.maximum(1.0, np.ceil(coming / self.setting.rho_cap - 1e-9)), self._floor)
        self._arrived = np.where(slow, 0.0, self._arrived)

    def _load(self, seen: Observed) -> Floats:
        setting, replicas = self.setting, np.maximum(1.0, seen.current)
        own = setting.profile.per_prefill_token_seconds * seen.mean_prompt
        wait = seen.queued_tokens * setting.profile.per_prefill_token_seconds / np.maximum(1.0, seen.ready)
        itl = setting.step_s / (1.0 - np.minimum(seen.rho, 0.99))
        up = (wait + own + itl > setting.ttft_s) | (itl > setting.tpot_s) | (seen.oldest_s > setting.ttft_s / 2)
        share = replicas / np.maximum(1.0, replicas - 1)
        itl_fewer = setting.step_s / np.maximum(1e-3, 1.0 - seen.rho * share)
        kv = seen.in_flight * seen.held_tokens / np.maximum(1.0, replicas - 1)
        queue_fits = wait * share < self.p["down"] * np.maximum(0.0, setting.ttft_s - own)
        fits = (itl_fewer < self.p["down"] * setting.tpot_s) & queue_fits & (kv < setting.kv_tokens)
        return np.where(up, replicas + 1, np.where(fits & (seen.queued <= 0), replicas - 1, replicas))
