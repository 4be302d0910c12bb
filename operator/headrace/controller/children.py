"""Apply a Model's children, and delete those that its plan no longer names."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.api import labels
from headrace.api.model import Model
from headrace.cluster.apply import Applier
from headrace.cluster.client import Client
from headrace.cluster.errors import ApiError, ClusterError, Conflict, NotFound
from headrace.cluster.events import Recorder
from headrace.cluster.resources import CHILDREN, DEPLOYMENTS, MODELS, Resource, key_of
from headrace.controller.store import Object, Store
from headrace.planning.cures import cured
from headrace.planning.judge import Refusal
from headrace.planning.manifests import Plan
from headrace.planning.reasons import Why

log = logging.getLogger(__name__)

OBSTACLE_RETRY_S = 5.0  # until an object of our name that is not ours is looked at again
_RESOURCE = {resource.kind: resource for resource in CHILDREN}


class OwnerGone(ClusterError):
    """The Model is being deleted, or is another one by now: nothing is created."""


@dataclass(frozen=True)
class World:
    """The ways out: reads, writes, Events."""

    client: Client
    applier: Applier
    recorder: Recorder


@dataclass(frozen=True)
class Outcome:
    """What a reconcile leaves to do."""

    again_in_s: float | None = None
    error: Exception | None = None  # try again with back-off


@dataclass(frozen=True)
class Applied:
    """How applying the children went."""

    refusal: Refusal | None = None
    other_manager: str | None = None  # who owns the Deployment's .spec.replicas instead of us
    outcome: Outcome = Outcome()


class Children:
    """The children of one installation's Models."""

    def __init__(self, store: Store, world: World, installation: str):
        self._store = store
        self._client, self._applier = world.client, world.applier
        self._installation = installation  # its namespace

    async def apply(self, model: Model, planned: Plan) -> Applied:
        """Apply all, then prune. Stops at the first that is refused. Raises ClusterError for what may pass."""
        other_manager: str | None = None
        for manifest in planned.children:
            resource = _RESOURCE[manifest["kind"]]
            held = await self._held(resource, manifest)
            if held is None and not await self._lives(model):
                raise OwnerGone(f"Model {model.metadata.name} is being deleted")
            obstacle = None if held is None else self._obstacle(held, model.metadata.uid)
            if obstacle is not None:
                refusal = Refusal(Why.NAME_TAKEN.value, f"{resource.kind} {model.metadata.name} {obstacle}")
                return Applied(refusal, outcome=Outcome(again_in_s=OBSTACLE_RETRY_S))
            try:
                other_manager = await self._apply_one(resource, manifest, held)
            except ApiError as error:
                if isinstance(error, Conflict) and not error.owners:
                    raise  # it went or was replaced meanwhile
                invalid = error.status in (400, 422)  # the next spec may be better, the same one is not
                return Applied(_refused(resource, error), other_manager, Outcome(error=None if invalid else error))
        await self._prune(model, planned)
        return Applied(other_manager=other_manager)

    async def _apply_one(self, resource: Resource, manifest: Object, held: Object | None) -> str | None:
        """Apply one child; one that we hold is bound to by its uid, so that it is not made again unawares."""
        if held is not None:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": held["metadata"]["uid"]}}
        if resource is DEPLOYMENTS:
            written, other_manager = await self._applier.apply_workload(resource, manifest)
        else:
            written, other_manager = await self._applier.apply(resource, manifest), None
        self._store.put(resource, written)
        return other_manager

    async def _held(self, resource: Resource, manifest: Object) -> Object | None:
        """The present object of that name; looked up where our watch, which goes by labels, shows none."""
        held = self._store.get(resource, key_of(manifest))
        if held is not None:
            return held
        try:
            return await self._client.get(resource, *key_of(manifest))
        except NotFound:
            return None

    async def _lives(self, model: Model) -> bool:
        """Asked before a child is created: our watch may not yet have told that the Model is going."""
        try:
            present = await self._client.get(MODELS, model.metadata.namespace, model.metadata.name)
        except NotFound:
            return False
        metadata = present["metadata"]
        return metadata.get("uid") == model.metadata.uid and not metadata.get("deletionTimestamp")

    def _obstacle(self, held: Object, uid: str) -> str | None:
        """What an object of that name is, if not ours to write."""
        if held["metadata"].get("deletionTimestamp"):
            return "is being deleted; the Model goes on once it has gone: look at its finalizers if it stays"
        if not _owned(held, uid):
            return "exists and does not belong to this Model: delete it, or give the Model another metadata.name"
        installation = (held["metadata"].get("labels") or {}).get(labels.INSTALLATION)
        if installation not in (None, self._installation):
            return (
                f"belongs to the installation in namespace {installation}: take this namespace out of the value "
                "`namespaces` of one of the two"
            )
        return None

    async def _prune(self, model: Model, planned: Plan) -> None:
        named = {(manifest["kind"], key_of(manifest)) for manifest in planned.children}
        for resource in CHILDREN:
            for child in list(self._store.in_namespace(resource, model.metadata.namespace)):
                metadata = child["metadata"]
                if (resource.kind, key_of(child)) in named or not _owned(child, model.metadata.uid):
                    continue
                if not metadata.get("deletionTimestamp") and await self._applier.delete(resource, child):
                    log.info("child was pruned", extra={"kind": resource.kind, "object": metadata["name"]})


def _refused(resource: Resource, error: ApiError) -> Refusal:
    if isinstance(error, Conflict) and error.owners:
        fields = ", ".join(f"{field} (by {owner})" for field, owner in sorted(error.owners.items()))
        message = f"{resource.kind}: fields are owned by others: {fields}"
        return Refusal(Why.CONFLICT.value, cured(Why.CONFLICT.value, message))
    whose = "grant the operator what it lacks, or change the policy that refuses it"
    cure = whose if error.status == 403 else "change spec.pod, spec.runtime or spec.accelerator so that it is allowed"
    return Refusal(Why.APPLY_REFUSED.value, f"{resource.kind}: {error.message[:3500]}: {cure}")


def _owned(obj: Object, uid: str) -> bool:
    return any(
        reference.get("controller") and reference.get("uid") == uid
        for reference in obj["metadata"].get("ownerReferences") or ()
    )
