"""Which reconcile a key belongs to, and which keys a change concerns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.api import labels
from headrace.cluster.resources import CHILDREN, CUSTOM, MODELS, PODS, PROFILES, SLOS, TENANTS, Key, Resource, key_of
from headrace.controller.store import Object, Store

Work = tuple[Resource, Key]
"""A custom resource and the object's (namespace, name)."""

WATCHED = (*CUSTOM, *CHILDREN, PODS)
CHILD_SELECTOR = f"{labels.MANAGED_BY}={labels.MANAGER},{labels.MODEL}"


def selector_of(resource: Resource) -> str | None:
    """The label selector of a watch: children and pods are found by our labels."""
    return None if resource in CUSTOM else CHILD_SELECTOR


def concerned(store: Store, resource: Resource, before: Object | None, now: Object | None) -> Iterator[Work]:
    """What a change of an object makes due; `before` or `now` is None where it appeared or went."""
    obj = now or before
    if obj is None:
        return
    namespace, name = key_of(obj)
    if resource in CHILDREN:
        yield from _owners(namespace, obj)
        return
    if resource == PODS:
        model = (obj["metadata"].get("labels") or {}).get(labels.MODEL)
        if model:
            yield MODELS, (namespace, model)
        return
    yield resource, (namespace, name)
    if _same_spec(before, now):
        return
    if resource == MODELS:
        yield from _all(store, namespace, TENANTS, SLOS, PROFILES)
    elif resource in (SLOS, PROFILES):
        yield from _users(store, resource, namespace, name)
        yield from _all(store, namespace, TENANTS)
    elif resource == TENANTS:
        yield from _sharers(store, (namespace, name), before, now)


def everything(store: Store) -> Iterator[Work]:
    """All that there is to reconcile."""
    for resource in CUSTOM:
        for key in sorted(store.all(resource)):
            yield resource, key


def _owners(namespace: str, obj: Object) -> Iterator[Work]:
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == MODELS.kind:
            yield MODELS, (namespace, str(reference["name"]))


def _same_spec(before: Object | None, now: Object | None) -> bool:
    if before is None or now is None:
        return False
    fields = ("generation", "uid", "deletionTimestamp")
    return all(before["metadata"].get(f) == now["metadata"].get(f) for f in fields)


def _all(store: Store, namespace: str, *resources: Resource) -> Iterator[Work]:
    for resource in resources:
        for obj in store.in_namespace(resource, namespace):
            yield resource, key_of(obj)


def _users(store: Store, resource: Resource, namespace: str, name: str) -> Iterator[Work]:
    field = "serviceLevelRef" if resource == SLOS else "parallelismRef"
    for obj in store.in_namespace(MODELS, namespace):
        if ((obj.get("spec") or {}).get(field) or {}).get("name") == name:
            yield MODELS, key_of(obj)


def _sharers(store: Store, key: Key, before: Object | None, now: Object | None) -> Iterator[Work]:
    """Other Tenants with one of the keys that this one has, or had."""
    mine = _hashes(before) | _hashes(now)
    for other, obj in sorted(store.all(TENANTS).items()):
        if other != key and mine & _hashes(obj):
            yield TENANTS, other


def _hashes(obj: Object | None) -> set[Any]:
    keys = ((obj or {}).get("spec") or {}).get("apiKeys") or ()
    return {key.get("sha256") for key in keys if isinstance(key, dict)}
