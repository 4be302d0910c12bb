"""The scaling loop: gateways' states -> samples -> decisions, which reconcile applies. The leader alone runs it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.api.model import Model
from headrace.api.slo import BUILTIN_SLO, ServiceLevelObjective
from headrace.cluster.apply import replicas_owner
from headrace.cluster.errors import ClusterError
from headrace.cluster.events import Note, Recorder
from headrace.cluster.lease import Leader
from headrace.cluster.resources import DEPLOYMENTS, MODELS, SLOS, TENANTS, Key
from headrace.controller.gateways import Gateways
from headrace.controller.measures import Measures
from headrace.controller.objects import find, models_in, pods_by_model, revision_of_deployment
from headrace.controller.purse import Purse, Wish
from headrace.controller.queue import KeyedQueue
from headrace.controller.reports import engines_of, essence, figures
from headrace.controller.shared import ModelNotes, Notes
from headrace.controller.store import Object, Store
from headrace.controller.tenants import Tenants
from headrace.controller.work import Work
from headrace.planning.live import class_statuses
from headrace.planning.pods import PodReport, report
from headrace.planning.status import DECISIONS_KEPT, ScalingView
from headrace.scaling.decide import decide
from headrace.scaling.load import BIN_S, Load
from headrace.scaling.recall import AGREE_S
from headrace.scaling.record import Ring
from headrace.scaling.samples import GatewayReport, merge
from headrace.scaling.types import Allowed, Decision, Memory, Policy, Reason, Replicas, Sample, iso
from headrace.scaling.window import Window

log = logging.getLogger(__name__)

EVERY_S = 1.0
YOUNG_S = 900.0  # of fresh load, from where Prometheus is not asked for more
UNUSABLE_S = 10.0  # so long without a usable input before the condition says so
UNUSABLE = (Reason.NO_DATA, Reason.STALE, Reason.INCOMPLETE)


@dataclass(frozen=True)
class Hands:
    """What the loop acts through."""

    leader: Leader
    queue: KeyedQueue[Work]
    recorder: Recorder
    tenants: Tenants
    measures: Measures
    installation: str  # its namespace
    manager: str  # the field manager of all that the operator writes
    purse: Purse


@dataclass
class _Memory:
    """What is kept of one Model between ticks."""

    window: Window
    uid: str
    decided: Memory | None = None  # what the last decision hands to the next
    replicas: int | None = None  # spec.replicas as last seen
    changed_at: float | None = None  # unix seconds; None: it has not changed while we looked
    cold_start_s: float | None = None
    unusable_since: float | None = None
    logged: tuple[int, Reason] | None = None  # the last decision that was logged


@dataclass(frozen=True)
class _Proposal:
    """What would be decided of a Model, were it alone."""

    deployment: Object
    pods: PodReport
    replicas: Replicas
    before: Memory
    decision: Decision


@dataclass
class _Look:
    """One Model in one tick."""

    key: Key
    model: Model
    policy: Policy
    slo: ServiceLevelObjective | None
    memory: _Memory
    notes: ModelNotes
    shown: object  # what the status was made from, before
    proposal: _Proposal | None = None  # None: nothing is decided


class Actor:
    """`tick()` is one look at all Models; `run()` ends only when cancelled. `record` holds the last minutes' decisions
    with what they were made from."""

    def __init__(
        self,
        store: Store,
        notes: Notes,
        gateways: Gateways,
        hands: Hands,
        clock: Callable[[], float] = time.time,
    ):
        self._store, self._notes, self._gateways = store, notes, gateways
        self._hands, self._clock = hands, clock
        self.record = Ring()
        self._memory: dict[Key, _Memory] = {}
        self._pods: dict[Key, list[Object]] = {}  # of this tick

    async def run(self) -> None:
        """Look each second while leading."""
        while True:
            began = time.monotonic()
            try:
                await self.tick()
            except ClusterError as error:
                log.warning("scaling loop was interrupted: %s", error)
            except Exception:  # a defect met with one input must not end all scaling
                log.exception("scaling loop failed")
            await asyncio.sleep(max(0.05, EVERY_S - (time.monotonic() - began)))

    async def tick(self) -> None:
        """Poll, decide, hand over. A follower forgets, so that it starts without a past."""
        if not self._hands.leader.leading:
            self._memory.clear()
            self._notes.clear()
            self._hands.purse.forget()
            self.record.keep(())
            return
        sharing = {m.metadata.namespace for m in models_in(self._store) if m.spec.scaling.mode == "Auto"}
        views, _ = await asyncio.gather(self._gateways.poll(), self._hands.purse.refresh(sharing, self._clock()))
        now = self._clock()
        self._notes.gateways = tuple(views)
        models = {(m.metadata.namespace, m.metadata.name): m for m in models_in(self._store)}
        self._memory = {key: memory for key, memory in self._memory.items() if key in models}
        self._notes.keep(models)
        self.record.keep(models)
        reports = [GatewayReport(view.name, now, view.state) for view in views]
        samples = merge(reports, now, models)
        self._pods = pods_by_model(self._store, self._hands.installation)
        seen = [self._safely(key, self._look, model, samples[key], now) for key, model in models.items()]
        looks = [look for look in seen if look is not None]
        allowed = self._allowed(looks, now)
        for look in looks:
            self._safely(look.key, self._conclude, look, allowed.get(look.key), now)
        for key in self._hands.tenants.changed():
            self._hands.queue.nudge((TENANTS, key))

    def _safely(self, key: Key, work: Callable[..., _Look | None], *arguments: Any) -> _Look | None:
        """A defect met with one Model must not end the scaling of the others."""
        try:
            return work(*arguments)
        except Exception:
            log.exception("scaling loop failed", extra={"kind": MODELS.kind, "namespace": key[0], "object": key[1]})
            return None

    def _look(self, model: Model, sample: Sample, now: float) -> _Look:
        """Take in the sample, and see what would be decided."""
        key = (model.metadata.namespace, model.metadata.name)
        slo = self._slo(model)
        policy = Policy.of(model, slo, now)
        memory = self._remember(key, model, policy)
        self._recall(key, memory.window.load, now)
        self.record.before(key, policy, memory.window)
        memory.window.add(sample)
        self.record.sample(key, sample)
        notes = self._notes.of(key)
        if not notes.scaling.decisions and model.status.scaling is not None:
            notes.scaling = replace(notes.scaling, decisions=tuple(model.status.scaling.last_decisions))
        look = _Look(key, model, policy, slo, memory, notes, _shown(notes))
        notes.engines = engines_of(self._notes.gateways, key)
        notes.figures = figures(policy, memory.window, sample, now)
        if model.spec.scaling.mode == "Off":
            notes.decision, notes.scaling = None, replace(notes.scaling, desired=None, trouble=None, bounds="")
        else:
            look.proposal = self._propose(look, now)
        return look

    def _allowed(self, looks: Sequence[_Look], now: float) -> dict[Key, Allowed]:
        """Who may not have all that it wants; nobody is bound where that cannot be told."""
        try:
            return self._hands.purse.allow([wish for look in looks if (wish := self._wish(look)) is not None], now)
        except Exception:  # a quota that nobody foresaw must not end all scaling
            log.exception("quotas were not shared out")
            return {}

    def _wish(self, look: _Look) -> Wish | None:
        """What a Model asks of what it shares with others; None where nothing would be done for it."""
        made, scaling = look.proposal, look.model.spec.scaling
        if made is None or not _acts(look.model, look.notes):
            return None
        return Wish(
            key=look.key,
            least=look.policy.min_replicas,
            current=made.replicas.current,
            wanted=made.decision.replicas,
            weight=scaling.weight,
            deployment=made.deployment,
            pods=made.pods,
            alive=sum(1 for pod in self._pods.get(look.key, ()) if _phase(pod) not in ("Succeeded", "Failed")),
        )

    def _conclude(self, look: _Look, allowed: Allowed | None, now: float) -> None:
        """Decide, within what others leave, and hand on what is new."""
        if look.proposal is not None:
            self._decide(look, look.proposal, allowed, now)
        if look.shown != _shown(look.notes):
            self._hands.queue.add((MODELS, look.key))
        elif self._shows_less(look.model, look.slo, look.notes, now):
            self._hands.queue.nudge((MODELS, look.key))

    def _remember(self, key: Key, model: Model, policy: Policy) -> _Memory:
        memory = self._memory.get(key)
        if memory is None or memory.uid != model.metadata.uid:
            memory = self._memory[key] = _Memory(Window(policy), model.metadata.uid)
            self.record.forget(key)
        memory.window.resize(policy)
        return memory

    def _recall(self, key: Key, load: Load, now: float) -> None:
        """Take in what Prometheus remembers, once; say whether that would help. A recording begins anew with it."""
        notes, fresh_s = self._notes.of(key), len(load.arrivals(now)) * BIN_S
        points, notes.past = notes.past, ()
        if points and not load.recalls:
            found = load.recall(points, now)
            fields = {"kind": MODELS.kind, "namespace": key[0], "object": key[1]}
            log.info("load of before: %s", found.detail, extra=fields)
            if found.rates:
                self.record.close(key)
        notes.young = not load.recalls and AGREE_S <= fresh_s < YOUNG_S

    def _propose(self, look: _Look, now: float) -> _Proposal | None:
        memory, notes = look.memory, look.notes
        deployment = self._store.get(DEPLOYMENTS, look.key)
        if deployment is None:
            return None
        # another writer's number comes with its name: it is nobody's supply to correct, even before reconcile met it
        notes.other_manager = notes.other_manager or replicas_owner(deployment, self._hands.manager)
        current = int((deployment.get("spec") or {}).get("replicas", 1))
        if memory.replicas is not None and memory.replicas != current:
            memory.changed_at = now
        memory.replicas = current
        pods = report(self._pods.get(look.key, ()), revision_of_deployment(deployment), deployment)
        memory.cold_start_s = max(pods.cold_starts, default=memory.cold_start_s)
        replicas, before = replicas_of(current, pods, memory), memory.decided or Memory()
        decision = decide(look.policy, memory.window, replicas, now, before)
        return _Proposal(deployment, pods, replicas, before, decision)

    def _decide(self, look: _Look, made: _Proposal, allowed: Allowed | None, now: float) -> None:
        key, policy, memory, notes = look.key, look.policy, look.memory, look.notes
        replicas, decision = made.replicas, made.decision
        if allowed is not None:
            replicas = msgspec.structs.replace(replicas, allowed=allowed)
            decision = decide(policy, memory.window, replicas, now, made.before)
        self.record.decision(key, policy, replicas, made.before, decision)
        _log(key, memory, decision)
        if _acts(look.model, notes) or not decision.changes:  # a step not taken must not make the next one wait
            memory.decided = decision.memory
        self._hands.measures.desired(*key, decision.replicas)
        notes.scaling = replace(notes.scaling, bounds="" if policy.ordered is None else policy.ordered.detail)
        self._note(look.model, memory, notes, decision)

    def _note(self, model: Model, memory: _Memory, notes: ModelNotes, decision: Decision) -> None:
        """Hand a change to reconcile once, with an Event; under Advise, and beside another scaler, only show it."""
        acts = _acts(model, notes)
        view = replace(notes.scaling, desired=decision.replicas)
        if acts:
            fresh = decision.changes and notes.decision != decision.replicas
            if decision.changes:
                notes.decision = decision.replicas
        else:
            fresh = decision.changes and notes.scaling.desired != decision.replicas
            notes.decision = None
        if fresh and notes.other_manager is None and not notes.refused:
            view = replace(view, decisions=(decision.as_status(), *view.decisions)[:DECISIONS_KEPT])
        if fresh and acts:
            self._announce(model, decision)
        notes.scaling = _usability(view, memory, decision)

    def _announce(self, model: Model, decision: Decision) -> None:
        metadata = model.metadata
        fields = {"kind": MODELS.kind, "namespace": metadata.namespace, "object": metadata.name}
        log.info("replicas were decided: %s", decision.message, extra={**fields, "reason": decision.reason.value})
        self._hands.measures.decided(metadata.namespace, metadata.name, decision.reason.value)
        raw = self._store.get(MODELS, (metadata.namespace, metadata.name))
        if raw is not None:
            kind = "ScaledUp" if decision.replicas > decision.current else "ScaledDown"
            self._hands.recorder.record(MODELS, raw, Note("Normal", kind, "Scale", decision.message))

    def _shows_less(self, model: Model, slo: ServiceLevelObjective | None, notes: ModelNotes, now: float) -> bool:
        """True where the status should show other live figures."""
        shown = model.status.service_level
        spec = BUILTIN_SLO if slo is None else slo.spec
        return class_statuses(shown, notes.figures, spec, datetime.fromtimestamp(now, UTC)) != shown

    def _slo(self, model: Model) -> ServiceLevelObjective | None:
        ref = model.spec.service_level_ref
        if ref is None:
            return None
        return find(self._store, SLOS, ServiceLevelObjective, (model.metadata.namespace, ref.name))


def _shown(notes: ModelNotes) -> object:
    """What a status is made from, as far as this loop has it."""
    return notes.scaling, notes.decision, essence(notes.engines)


def _phase(pod: Object) -> object:
    return (pod.get("status") or {}).get("phase")


def _log(key: Key, memory: _Memory, decision: Decision) -> None:
    """One line with all of a decision, whenever it is another one than before."""
    if memory.logged != (decision.replicas, decision.reason):
        memory.logged = (decision.replicas, decision.reason)
        fields = {"kind": MODELS.kind, "namespace": key[0], "object": key[1], "reason": decision.reason.value}
        log.info("a decision was made", extra={**fields, "decision": msgspec.json.encode(decision).decode()})


def _acts(model: Model, notes: ModelNotes) -> bool:
    """True where decisions are applied: under Auto, where nobody else scales, and not while the Model is stalled."""
    return model.spec.scaling.mode == "Auto" and notes.other_manager is None and not notes.refused


def replicas_of(current: int, pods: PodReport, memory: _Memory) -> Replicas:
    """The supply: a pod of an older revision serves, too, until its successor is ready."""
    return Replicas(
        current=current,
        ready=pods.all_ready,
        pending=max(0, current - pods.all_ready),
        unschedulable=min(pods.unschedulable, max(0, current - pods.all_ready)),
        terminating=pods.terminating,
        changed_at=memory.changed_at,
        cold_start_s=memory.cold_start_s,
    )


def _usability(view: ScalingView, memory: _Memory, decision: Decision) -> ScalingView:
    """Say that the inputs are unusable only after some seconds, and since when."""
    if decision.reason not in UNUSABLE:
        memory.unusable_since = None
        return replace(view, trouble=None)
    if memory.unusable_since is None:
        memory.unusable_since = decision.at
    if decision.at - memory.unusable_since < UNUSABLE_S:
        return view
    message = f"replicas are held: no usable input since {iso(memory.unusable_since)}"
    return replace(view, trouble=(decision.reason.value, message))
