"""The operator's cache of objects: filled by events, replaced by LISTs, which alone know what vanished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from headrace.cluster.apply import REPLICAS_FIELD, replicas_owners
from headrace.cluster.resources import Key, Resource, key_of

Object = dict[str, Any]
T = TypeVar("T")


class Store:
    """Objects by resource and (namespace, name). They are shared: treat them as read-only."""

    def __init__(self) -> None:
        self._objects: dict[Resource, dict[Key, Object]] = {}
        self._memo: dict[tuple[Resource, Key], tuple[Object, Any]] = {}
        self._removed: dict[Resource, dict[Key, int]] = {}  # version at which each went, since the last LIST

    def get(self, resource: Resource, key: Key) -> Object | None:
        """One object, or None."""
        return self._objects.get(resource, {}).get(key)

    def all(self, resource: Resource) -> dict[Key, Object]:
        """All objects of a resource (a copy of the table)."""
        return dict(self._objects.get(resource, {}))

    def in_namespace(self, resource: Resource, namespace: str) -> Iterator[Object]:
        """Objects of a resource in a namespace."""
        for key, obj in sorted(self._objects.get(resource, {}).items()):
            if key[0] == namespace:
                yield obj

    def parsed(self, resource: Resource, key: Key, parse: Callable[[Object], T]) -> T | None:
        """What `parse` makes of an object, made once for each version; None where there is no object.

        One resource is always parsed by the same function. Raises what `parse` raises.
        """
        held = self.get(resource, key)
        if held is None:
            self._memo.pop((resource, key), None)
            return None
        known = self._memo.get((resource, key))
        if known is None or known[0] is not held:
            known = self._memo[resource, key] = (held, parse(held))
        found: T = known[1]
        return found

    def put(self, resource: Resource, obj: Object) -> Object | None:
        """Take a newer object; gives the one before. An older one is ignored."""
        table, key = self._objects.setdefault(resource, {}), key_of(obj)
        before = table.get(key)
        if before is None or version(obj) >= version(before):
            table[key] = _slim(obj)
        return before

    def remove(self, resource: Resource, obj: Object) -> None:
        """The object is gone."""
        key = key_of(obj)
        held = self._objects.setdefault(resource, {}).get(key)
        self._removed.setdefault(resource, {})[key] = version(obj)
        if held is not None and (held["metadata"].get("uid") == obj["metadata"].get("uid")):
            del self._objects[resource][key]
            self._memo.pop((resource, key), None)

    def replace(self, resource: Resource, namespace: str, items: Iterable[Object], listed_at: str) -> set[Key]:
        """Take a LIST of a namespace's objects; gives the keys that changed, appeared or vanished.

        `listed_at` is the LIST's resourceVersion: what events told since it was read is newer and stays.
        """
        table = self._objects.setdefault(resource, {})
        removed = self._removed.pop(resource, {})
        self._removed[resource] = {key: at for key, at in removed.items() if key[0] != namespace}
        before = {key: obj for key, obj in table.items() if key[0] == namespace}
        now: dict[Key, Object] = {}
        for item in items:
            key = key_of(item)
            if removed.get(key, -1) >= version(item):
                continue
            held = before.get(key)
            now[key] = held if held is not None and version(held) > version(item) else _slim(item)
        for key, held in before.items():
            if key not in now and version(held) > _number(listed_at):
                now[key] = held
        for key in before.keys() - now.keys():
            del table[key]
            self._memo.pop((resource, key), None)
        table.update(now)
        gone = before.keys() - now.keys()
        return gone | {key for key, obj in now.items() if key not in before or version(before[key]) != version(obj)}


def version(obj: Object) -> int:
    """The resourceVersion as a number; 0 where it is none."""
    return _number(str((obj.get("metadata") or {}).get("resourceVersion") or ""))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _slim(obj: Object) -> Object:
    """Without the bookkeeping of field managers, which is larger than the object, but for who owns spec.replicas."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    owners = replicas_owners(obj)
    if owners:
        metadata["managedFields"] = [{"manager": owner, "fieldsV1": REPLICAS_FIELD} for owner in owners]
    return {**obj, "metadata": metadata}
