"""Look-ups in the store, and the frame of a status apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from headrace.api.model import Model
from headrace.api.profile import ParallelismProfile
from headrace.api.slo import ServiceLevelObjective
from headrace.cluster.resources import MODELS, PROFILES, SLOS, Key, Resource
from headrace.controller.parse import SpecError, parse, parse_model
from headrace.controller.store import Object, Store
from headrace.planning.judge import References

T = TypeVar("T", bound=BaseModel)


def find(store: Store, resource: Resource, kind: type[T], key: Key) -> T | None:
    """A parsed object; None where it is missing or invalid."""
    raw = store.get(resource, key)
    if raw is None:
        return None
    try:
        return parse(kind, raw)
    except SpecError:
        return None


def references_of(store: Store, model: Model) -> References:
    """The objects that a Model refers to; those that are missing or invalid are None."""
    namespace, spec = model.metadata.namespace, model.spec
    slo = profile = None
    if spec.service_level_ref is not None:
        slo = find(store, SLOS, ServiceLevelObjective, (namespace, spec.service_level_ref.name))
    if spec.parallelism_ref is not None:
        profile = find(store, PROFILES, ParallelismProfile, (namespace, spec.parallelism_ref.name))
    return References(slo=slo.spec if slo else None, profile=profile.spec if profile else None)


def models_in(store: Store, namespace: str | None = None) -> Iterator[Model]:
    """The Models that can be read and are not being deleted."""
    for key, raw in sorted(store.all(MODELS).items()):
        if (namespace is None or key[0] == namespace) and not raw["metadata"].get("deletionTimestamp"):
            try:
                yield parse_model(raw)
            except SpecError:
                continue


def status_object(resource: Resource, raw: Object, status: dict[str, Any]) -> Object:
    """What a status apply sends: bound to this very object by its uid."""
    metadata = {k: raw["metadata"][k] for k in ("name", "namespace", "uid")}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
