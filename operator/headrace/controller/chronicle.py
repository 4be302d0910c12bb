"""Keeps each Model's attainment over its objective's window, where a Prometheus is configured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headrace.api.model import Model
from headrace.api.slo import BUILTIN_SLO
from headrace.cluster.lease import Leader
from headrace.cluster.resources import MODELS
from headrace.controller.objects import models_in, references_of
from headrace.controller.queue import KeyedQueue
from headrace.controller.shared import Notes
from headrace.controller.store import Store
from headrace.controller.work import Work
from headrace.metrics.history import History, words

EVERY_S = 60.0
IDLE_S = 1.0  # until the next look while following, or while there are no Models


class Chronicle:
    """`run()` ends only when cancelled."""

    def __init__(
        self,
        store: Store,
        notes: Notes,
        history: History,
        leader: Leader,
        queue: KeyedQueue[Work],
        clock: Callable[[], float] = time.time,
    ):
        self._store, self._notes, self._history = store, notes, history
        self._leader, self._queue, self._clock = leader, queue, clock

    async def run(self) -> None:
        """Look each minute while leading; the first time as soon as there is something to look at."""
        while True:
            models = list(models_in(self._store)) if self._leader.leading else []
            for model in models:
                await self.look(model)
            await asyncio.sleep(EVERY_S if models else IDLE_S)

    async def look(self, model: Model) -> None:
        """Ask for one Model; reconcile it where the sentence changed."""
        key = (model.metadata.namespace, model.metadata.name)
        window = (references_of(self._store, model).slo or BUILTIN_SLO).window
        sentence = words(await self._history.attainment(*key, window), window)
        notes = self._notes.of(key)
        if notes.young:
            notes.past = await self._history.offered(*key, self._clock())
        if sentence != notes.history:
            notes.history = sentence
            self._queue.add((MODELS, key))
