"""Look-ups in the store, and the frame of a status apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from headrace.api import labels
from headrace.api.model import Model
from headrace.api.profile import ParallelismProfile
from headrace.api.slo import ServiceLevelObjective
from headrace.cluster.resources import MODELS, PODS, PROFILES, SLOS, Key, Resource
from headrace.controller.parse import SpecError, parse, parse_model
from headrace.controller.store import Object, Store
from headrace.planning.judge import References
from headrace.planning.template import DRAIN_FLAG

T = TypeVar("T", bound=BaseModel)


def find(store: Store, resource: Resource, kind: type[T], key: Key) -> T | None:
    """A parsed object, without its status; None where it is missing or invalid."""
    try:
        return store.parsed(resource, key, lambda raw: parse(kind, raw))
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
    for key in sorted(store.all(MODELS)):
        if namespace is None or key[0] == namespace:
            try:
                model = store.parsed(MODELS, key, parse_model)
            except SpecError:
                continue
            if model is not None and model.metadata.deletion_timestamp is None:
                yield model


def pods_by_model(store: Store, installation: str) -> dict[Key, list[Object]]:
    """The serving pods of each Model of an installation, whose namespace is given."""
    pods: dict[Key, list[Object]] = {}
    for (namespace, _), pod in store.all(PODS).items():
        marks = pod["metadata"].get("labels") or {}
        if marks.get(labels.ROLE) == labels.ROLE_SERVE and marks.get(labels.INSTALLATION) == installation:
            pods.setdefault((namespace, str(marks.get(labels.MODEL))), []).append(pod)
    return pods


def revision_of_deployment(deployment: Object | None) -> str:
    """The revision that a Deployment rolls out; "" where there is none."""
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    return str(((template.get("metadata") or {}).get("labels") or {}).get(labels.REVISION, ""))


def replicas_of_deployment(deployment: Object) -> int:
    """Replicas that a Deployment is to have."""
    return int((deployment.get("spec") or {}).get("replicas", 1))


def drain_of_deployment(deployment: Object | None) -> int | None:
    """Seconds that the Deployment's engines wait for their requests when they stop; None where it does not say."""
    spec = (((deployment or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in spec.get("containers") or ():
        command = [str(word) for word in container.get("command") or ()]
        if container.get("name") == labels.ENGINE_CONTAINER and DRAIN_FLAG in command[:-1]:
            value = command[command.index(DRAIN_FLAG) + 1]
            return int(value) if value.isdigit() else None
    return None


def status_object(resource: Resource, raw: Object, status: dict[str, Any]) -> Object:
    """What a status apply sends: bound to this very object by its uid."""
    metadata = {k: raw["metadata"][k] for k in ("name", "namespace", "uid")}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
