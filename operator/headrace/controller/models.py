"""Reconcile a Model: parse, observe, plan, apply, status once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace.api.conditions import ConditionType
from headrace.api.model import Model
from headrace.api.model_status import CommunicationStatus, ModelStatus
from headrace.api.slo import BUILTIN_SLO
from headrace.cluster.errors import Conflict
from headrace.cluster.events import Note
from headrace.cluster.resources import DEPLOYMENTS, MODELS, Key, key_of
from headrace.controller.children import Applied, Children, Outcome, OwnerGone, World
from headrace.controller.farewell import Farewell
from headrace.controller.objects import (
    drain_of_deployment,
    pods_by_model,
    references_of,
    replicas_of_deployment,
    revision_of_deployment,
    status_object,
)
from headrace.controller.parse import SpecError, parse_model, status_of
from headrace.controller.rivals import Rivals
from headrace.controller.shared import ModelNotes, Notes
from headrace.controller.store import Object, Store
from headrace.planning import communication
from headrace.planning.installation import Installation
from headrace.planning.judge import Judgement, References, judge, known_shape
from headrace.planning.manifests import Running, plan
from headrace.planning.pods import PodReport, report
from headrace.planning.reasons import Why
from headrace.planning.replicas import target
from headrace.planning.status import ScalingView, View, invalid_status, model_status, stamp
from headrace.planning.template import Inputs
from headrace_wire.memory import ParallelismError

log = logging.getLogger(__name__)


class Models:
    """The Models of the watched namespaces."""

    def __init__(
        self,
        store: Store,
        notes: Notes,
        world: World,
        installation: Installation,
        now: Callable[[], datetime],
    ):
        self._store, self._notes = store, notes
        self._applier, self._recorder = world.applier, world.recorder
        self._children = Children(store, world, installation.namespace)
        self._farewell = Farewell(store, world.applier)
        self._rivals = Rivals(world.client)
        self._installation = installation
        self._now = now

    async def reconcile(self, key: Key) -> Outcome:
        """Bring one Model's children and status in line with its spec. Raises ClusterError where that fails."""
        raw = self._store.get(MODELS, key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Outcome()
        notes = self._notes.of(key)
        try:
            model = parse_model(raw)
        except SpecError as error:
            await self._write_invalid(raw, error)
            return Outcome()
        references = references_of(self._store, model)
        inputs = Inputs(model=model, slo=references.slo or BUILTIN_SLO, installation=self._installation)
        deployment = self._store.get(DEPLOYMENTS, key)
        observed = None if deployment is None else replicas_of_deployment(deployment)
        wanted = target(model.spec, notes.decision, observed, self._now().timestamp())
        planned = plan(inputs, wanted, self._running(model, deployment))
        judgement = self._judge(model, references, notes, planned.revision)
        applied = Applied()
        if judgement.startable:
            await self._part(key, notes, (observed or 0) - wanted)
            try:
                applied = await self._children.apply(model, planned)
            except OwnerGone:
                return Outcome()
            await self._note_rival(raw, notes, applied.other_manager)
            if applied.refusal is not None:
                judgement = Judgement(refusal=applied.refusal, fit=judgement.fit, references=references)
        notes.refused = judgement.refusal is not None
        if applied.other_manager is not None:
            wanted = replicas_of_deployment(self._store.get(DEPLOYMENTS, key) or {})
        pods = self._pods(model, planned.revision if judgement.startable else revision_of_deployment(deployment))
        view = self._view(inputs, judgement, pods, notes, (wanted, applied.other_manager))
        await self._write_status(raw, view, notes)
        return applied.outcome

    async def _part(self, key: Key, notes: ModelNotes, fewer: int) -> None:
        """Before there are fewer replicas: choose which go."""
        if fewer > 0 and notes.other_manager is None:
            mine = pods_by_model(self._store, self._installation.namespace).get(key, ())
            await self._farewell.mark(list(mine), notes.engines, fewer)

    async def _note_rival(self, raw: Object, notes: ModelNotes, manager: str | None) -> None:
        """Remember who else sets the replicas, and tell of a new one in an Event."""
        words = await self._rivals.words(key_of(raw), manager)
        if words and words != notes.rival:
            told = f"{words} sets the replicas of Deployment {raw['metadata']['name']}; Headrace leaves them alone"
            self._recorder.record(MODELS, raw, Note("Warning", Why.CONFLICT.value, "Scale", told))
        notes.other_manager, notes.rival = manager, words

    def _judge(self, model: Model, references: References, notes: ModelNotes, revision: str) -> Judgement:
        uri = model.spec.source.uri
        fetched = self._pods(model, revision).fetched
        if fetched is not None and fetched.shape is not None:
            notes.shapes = {uri: fetched.shape}
        return judge(model, references, known_shape(model, notes.shapes.get(uri)))

    def _pods(self, model: Model, revision: str) -> PodReport:
        mine = pods_by_model(self._store, self._installation.namespace)
        key = (model.metadata.namespace, model.metadata.name)
        return report(mine.get(key, ()), revision, self._store.get(DEPLOYMENTS, key))

    def _running(self, model: Model, deployment: Object | None) -> Running:
        revision = revision_of_deployment(deployment)
        pods = self._pods(model, revision)
        drain = drain_of_deployment(deployment)
        return Running(revision=revision, drain_s=drain, pods=pods.revisions, serves=pods.all_ready > 0)

    def _view(
        self,
        inputs: Inputs,
        judgement: Judgement,
        pods: PodReport,
        notes: ModelNotes,
        workload: tuple[int, str | None],
    ) -> View:
        wanted, other_manager = workload
        return View(
            model=inputs.model,
            judgement=judgement,
            slo=inputs.slo,
            installation=self._installation,
            pods=pods,
            wanted=wanted,
            now=self._now(),
            communication=_communication(inputs.model, judgement, notes),
            engines=notes.engines,
            figures=notes.figures,
            history=notes.history,
            scaling=_scaling_view(inputs.model, notes, other_manager),
        )

    async def _write_status(self, raw: Object, view: View, notes: ModelNotes) -> None:
        previous = view.model.status
        await self._apply_status(raw, stamp(model_status(view), previous, view.now))
        self._announce(raw, notes)

    async def _write_invalid(self, raw: Object, error: SpecError) -> None:
        metadata = raw["metadata"]
        previous = status_of(ModelStatus, raw)
        status = invalid_status(metadata["name"], int(metadata.get("generation") or 0), previous, error.problems)
        await self._apply_status(raw, stamp(status, previous, self._now()))

    async def _apply_status(self, raw: Object, status: dict[str, Any]) -> None:
        try:
            written = await self._applier.apply_status(MODELS, status_object(MODELS, raw, status))
        except Conflict as conflict:
            if conflict.owners:
                self._recorder.record(
                    MODELS, raw, Note("Warning", Why.CONFLICT.value, "Reconcile", _rival(raw, conflict))
                )
            raise
        self._store.put(MODELS, {"apiVersion": MODELS.api_version, "kind": MODELS.kind, **written})

    def _announce(self, raw: Object, notes: ModelNotes) -> None:
        """An Event where Ready changed its status or its reason."""
        held = self._store.get(MODELS, key_of(raw)) or raw
        for condition in (held.get("status") or {}).get("conditions") or ():
            if condition["type"] != ConditionType.READY.value:
                continue
            now = (condition["status"], condition["reason"])
            if notes.ready != now:
                log.info("a Model's readiness changed", extra=_said(raw, condition))
            if notes.ready is not None and notes.ready != now:
                kind = "Warning" if now[0] == "False" and now[1] not in _USUAL else "Normal"
                note = Note("Warning" if kind == "Warning" else "Normal", now[1], "Reconcile", condition["message"])
                self._recorder.record(MODELS, raw, note)
            notes.ready = now


def _said(raw: Object, ready: Object) -> dict[str, str]:
    """Fields of a log line about the condition Ready."""
    metadata = raw["metadata"]
    told = {"ready": ready["status"], "reason": ready["reason"], "detail": ready["message"]}
    return {"namespace": metadata["namespace"], "model": metadata["name"], **told}


def _rival(raw: Object, conflict: Conflict) -> str:
    others = ", ".join(sorted({repr(owner) for owner in conflict.owners.values()}))
    metadata, fields = raw["metadata"], ", ".join(sorted(conflict.owners)[:5])
    return (
        f"{fields} is owned by field manager {others}, so the status is not brought up to date: does a second "
        "installation watch this namespace? Stop that manager; then delete its entry of metadata.managedFields: "
        f"kubectl edit models.headrace.dev {metadata['name']} -n {metadata['namespace']} --show-managed-fields"
    )


_USUAL = {Why.STARTING.value, Why.ROLLING_OUT.value, Why.NOT_APPLIED.value}
"""Reasons for not being ready that pass by themselves."""


def _communication(model: Model, judgement: Judgement, notes: ModelNotes) -> CommunicationStatus | None:
    shape, profile = known_shape(model, notes.shapes.get(model.spec.source.uri)), judgement.references.profile
    if shape is None or profile is None:
        return None
    try:
        planned = communication.plan(shape, profile, model.spec.precision.dtype)
    except ParallelismError:
        return None
    return None if planned is None else planned.as_status()


def _scaling_view(model: Model, notes: ModelNotes, other_manager: str | None) -> ScalingView:
    view = notes.scaling
    if not view.decisions and model.status.scaling is not None:
        view = replace(view, decisions=tuple(model.status.scaling.last_decisions))
    return replace(view, other_manager=other_manager, rival=notes.rival)
