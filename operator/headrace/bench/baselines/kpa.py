"""Knative's KPA, and AIBrix' APA: two windows over a value for each pod, with a panic mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.bench.baselines.base import Baseline, Parameters, Setting
from headrace.bench.baselines.history import Maxima, Means
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats


class Kpa(Baseline):
    """Average concurrency over 60 s and 6 s, target 70 % of the slots, each clamped to [ready / 2, 1000 ready], every
    2 s. Panic when the short window asks for twice what is ready; it ends after a whole stable window without, and
    never goes down. It starts in panic. The scale-down delay (a maximum over a window) is off by default."""

    name = "knative-kpa"
    defaults = {"target": 0.7, "stable": 60.0, "panic": 2.0, "delay": 0.0}
    grid = {
        "target": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        "stable": (60.0, 180.0, 600.0),
        "panic": (1.3, 2.0),
        "delay": (0.0, 300.0),
    }
    EVERY_S = 2.0
    PANIC_SHARE = 0.1

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        super().__init__(parameters, setting)
        self._stable = Means(self.p["stable"], setting.dt)
        self._short = Means(self.p["stable"] * self.PANIC_SHARE, setting.dt)
        self._delay = Maxima(np.maximum(self.p["delay"], self.EVERY_S), self.EVERY_S)
        self._panicked = np.zeros(len(parameters))  # when the threshold was last exceeded; starts in panic
        self._most = np.zeros(len(parameters))

    def decide(self, seen: Observed) -> Floats | None:
        self._stable.add(seen.in_flight + seen.queued)
        self._short.add(seen.in_flight + seen.queued)
        if not self.due(seen, self.EVERY_S):
            return None
        target, ready = self.p["target"] * self.setting.slots, np.maximum(1.0, seen.ready)
        slow = clamp(np.ceil(self._stable.mean() / target - 1e-9), ready)
        fast = clamp(np.ceil(self._short.mean() / target - 1e-9), ready)
        over = np.ceil(self._short.mean() / target - 1e-9) / ready >= self.p["panic"]
        self._panicked = np.where(over, seen.now, self._panicked)
        panicking = (seen.now - self._panicked) < self.p["stable"]
        started = panicking & (self._most <= 0)
        self._most = np.where(started, seen.current, self._most)
        self._most = np.where(panicking, np.maximum(self._most, np.maximum(slow, fast)), 0.0)
        return np.maximum(1.0, self._delay.add(np.where(panicking, self._most, slow)))


def clamp(wanted: Floats, ready: Floats) -> Floats:
    """Between half and a thousand times the ready replicas."""
    return np.clip(wanted, np.floor(ready / 2), np.ceil(1000 * ready))


class Apa(Baseline):
    """AIBrix' APA on the KV pool's use for each pod (target 50 %, as in its documents): tolerance 10 %, at most
    double and at least half, down to the largest answer of the last 300 s. Panic where the short window exceeds
    twice the long one (or that is zero), decided anew each time."""

    name = "aibrix-apa"
    defaults = {"target": 0.5, "down": 300.0, "stable": 180.0}
    grid = {
        "target": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7),
        "down": (60.0, 300.0, 600.0),
        "stable": (60.0, 180.0),
    }
    EVERY_S = 10.0
    TOLERANCE, RATE = 0.1, 2.0

    def __init__(self, parameters: Sequence[Parameters], setting: Setting):
        super().__init__(parameters, setting)
        self._stable = Means(self.p["stable"], setting.dt)
        self._short = Means(self.p["stable"] / 3, setting.dt)
        self._down = Maxima(self.p["down"], self.EVERY_S)

    def decide(self, seen: Observed) -> Floats | None:
        use = seen.in_flight * (seen.held_tokens / self.setting.kv_tokens)
        self._stable.add(use)
        self._short.add(use)
        if not self.due(seen, self.EVERY_S):
            return None
        slow, fast = self._stable.mean(), self._short.mean()
        panic = (slow <= 0) | (fast > 2.0 * slow)
        value = np.where(panic, fast, slow) / np.maximum(1.0, seen.current)
        wanted = apa(seen.current, value / self.p["target"])
        held = self._down.add(wanted)
        return np.maximum(1.0, np.where(wanted > seen.current, wanted, np.minimum(held, seen.current)))


def apa(current: Floats, ratio: Floats) -> Floats:
    """APA's formula; `ratio` = value for each pod over its target."""
    up = np.minimum(np.ceil(current * ratio - 1e-9), np.ceil(current * Apa.RATE))
    down = np.maximum(np.ceil(current * ratio - 1e-9), np.floor(current / Apa.RATE))
    return np.where(ratio > 1 + Apa.TOLERANCE, up, np.where(ratio < 1 - Apa.TOLERANCE, down, current))
