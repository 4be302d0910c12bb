"""A Kubernetes API in memory: objects, watches, server-side apply with owners of fields. Answers as the real one does.

It knows no schemas and no controllers. Lists are owned as wholes. `fail` makes the next requests go wrong.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from headrace.cluster.client import APPLY, Client, Object
from headrace.cluster.connection import Connection
from headrace.cluster.errors import ApiError, ClusterError, api_error
from headrace.cluster.resources import CHILDREN, CUSTOM, ENDPOINT_SLICES, EVENTS, LEASES, PODS, QUOTAS, Key, Resource

RESOURCES = (*CUSTOM, *CHILDREN, PODS, ENDPOINT_SLICES, LEASES, EVENTS, QUOTAS)
Path = tuple[str, ...]


class FakeCluster(Client):
    """Use it wherever a Client is expected; `objects` is the world to assert."""

    def __init__(self) -> None:
        super().__init__(Connection("http://fake.invalid"))
        self.objects: dict[tuple[str, Key], Object] = {}  # by plural and key
        self.fail: list[ClusterError] = []  # raised by the next requests, in order
        self.requests: list[tuple[str, str]] = []  # method and path
        self.oldest = 0  # watches from an older version get 410
        self._version = 0
        self._owners: dict[tuple[str, Key], dict[str, set[Path]]] = {}
        self._history: list[tuple[int, str, str, Object]] = []  # version, plural, type, object
        self._changed = asyncio.Event()

    def forget_history(self) -> None:
        """As a compaction: watches that resume from before now must list again; those that run are ended."""
        self._version += 1
        self.oldest = self._version
        self._history.clear()
        self._changed.set()

    async def list(
        self, resource: Resource, namespace: str | None, label_selector: str | None = None
    ) -> tuple[list[Object], str]:
        """All objects that match, and the present version."""
        self._begin("LIST", resource.path(namespace))
        return [copy.deepcopy(o) for o in self._matching(resource.plural, namespace, label_selector)], str(
            self._version
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = 0.0,
    ) -> Object:
        """One request on an object."""
        self._begin(method, path)
        resource, key, subresource = _read(path)
        if method == "POST":
            key = (key[0], str((body or {})["metadata"]["name"]))
            if (resource.plural, key) in self.objects:
                raise _status(409, "AlreadyExists", f"{resource.plural} {key[1]!r} already exists")
            return self._store(resource, key, {**_identity(resource), **copy.deepcopy(body or {})})
        if method == "PATCH" and content_type == APPLY:
            return self._apply(resource, key, body or {}, (str((params or {})["fieldManager"]), subresource))
        held = self._held(resource, key)
        if method == "GET":
            return copy.deepcopy(held)
        if method == "DELETE":
            return self._delete(resource, key, held, body or {})
        given = copy.deepcopy(body or {})
        if method == "PUT":
            if given["metadata"].get("resourceVersion") not in (None, held["metadata"]["resourceVersion"]):
                raise _status(409, "Conflict", "the object has been modified")
            return self._store(resource, key, given)
        self._take_over(resource, key, given, str((params or {}).get("fieldManager", "unknown")))
        return self._store(resource, key, _merge(held, given))

    async def watch(self, path: str, params: Mapping[str, str], *, inactivity_s: float) -> AsyncIterator[Object]:
        """Events after the version in `params`, for ever; 410 where they are forgotten."""
        self._begin("WATCH", path)
        resource, (namespace, _), _ = _read(path)
        selector, at = params.get("labelSelector"), int(params["resourceVersion"])
        while True:
            if at < self.oldest:
                yield {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
                return
            for version, plural, kind, obj in list(self._history):
                fits = namespace in ("", obj["metadata"].get("namespace")) and _selected(obj, selector)
                if version > at and plural == resource.plural and fits:
                    yield {"type": kind, "object": copy.deepcopy(obj)}
            at = max(at, self._version)
            self._changed.clear()
            await self._changed.wait()

    def _begin(self, method: str, path: str) -> None:
        self.requests.append((method, path))
        if self.fail:
            raise self.fail.pop(0)

    def _matching(self, plural: str, namespace: str | None, selector: str | None) -> Iterator[Object]:
        for (kind, key), obj in sorted(self.objects.items()):
            if kind == plural and namespace in (None, key[0]) and _selected(obj, selector):
                yield obj

    def _held(self, resource: Resource, key: Key) -> Object:
        held = self.objects.get((resource.plural, key))
        if held is None:
            raise _status(404, "NotFound", f"{resource.plural} {key[1]!r} not found")
        return held

    def _store(self, resource: Resource, key: Key, obj: Object) -> Object:
        before = self.objects.get((resource.plural, key))
        metadata = {"uid": uuid.uuid4().hex, **(before or {}).get("metadata", {}), **obj["metadata"]}
        metadata |= {"namespace": key[0], "name": key[1]}
        generation = int(metadata.get("generation", 0))
        changed = before is None or before.get("spec") != obj.get("spec")
        metadata["generation"] = generation + 1 if changed else generation
        obj = {**obj, "metadata": metadata}
        obj["metadata"]["managedFields"] = self._managed(resource, key)
        if before is not None and _without_version(before) == _without_version(obj):
            return copy.deepcopy(before)
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.objects[resource.plural, key] = obj
        self._tell(resource, "ADDED" if before is None else "MODIFIED", obj)
        return copy.deepcopy(obj)

    def _delete(self, resource: Resource, key: Key, held: Object, options: Object) -> Object:
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, held["metadata"]["uid"]):
            raise _status(409, "Conflict", "the uid does not match")
        del self.objects[resource.plural, key]
        self._owners.pop((resource.plural, key), None)
        self._version += 1
        gone = {**held, "metadata": {**held["metadata"], "resourceVersion": str(self._version)}}
        self._tell(resource, "DELETED", gone)
        return {}

    def _apply(self, resource: Resource, key: Key, given: Object, by: tuple[str, str | None]) -> Object:
        manager, subresource = by
        held = self.objects.get((resource.plural, key))
        if held is None and (subresource is not None or "uid" in given["metadata"]):
            raise _status(404 if subresource else 409, "NotFound" if subresource else "Conflict", "no such object")
        if held is not None and given["metadata"].get("uid", held["metadata"]["uid"]) != held["metadata"]["uid"]:
            raise _status(409, "Conflict", "the uid does not match")
        owners = self._owners.setdefault((resource.plural, key), {})
        name = manager if subresource is None else f"{manager}/{subresource}"
        fields = dict(_leaves({k: v for k, v in given.items() if k in ("spec", "status")}))
        fields |= {("metadata", "labels", k): v for k, v in given["metadata"].get("labels", {}).items()}
        result = copy.deepcopy(held) if held is not None else {**_identity(resource), "metadata": {}}
        self._check_conflicts(result, fields, owners, name)
        for path in owners.get(name, set()) - fields.keys():
            if not any(path in theirs for other, theirs in owners.items() if other != name):
                _drop(result, path)
        for path, value in fields.items():
            _put(result, path, copy.deepcopy(value))
        if "ownerReferences" in given["metadata"]:
            result["metadata"]["ownerReferences"] = copy.deepcopy(given["metadata"]["ownerReferences"])
        owners[name] = set(fields)
        return self._store(resource, key, result)

    def _check_conflicts(
        self, held: Object, fields: Mapping[Path, Any], owners: Mapping[str, set[Path]], manager: str
    ) -> None:
        causes = [
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{other}"',
                "field": "." + ".".join(path),
            }
            for path, value in fields.items()
            for other, theirs in owners.items()
            if other != manager and path in theirs and _look(held, path) != value
        ]
        if causes:
            body = {"reason": "Conflict", "message": "Apply failed", "details": {"causes": causes}}
            raise api_error(409, body)

    def _take_over(self, resource: Resource, key: Key, given: Object, manager: str) -> None:
        """An update takes the fields that it changes."""
        owners = self._owners.setdefault((resource.plural, key), {})
        fields = {path for path, _ in _leaves({k: v for k, v in given.items() if k in ("spec", "status")})}
        for theirs in owners.values():
            theirs -= fields
        owners.setdefault(manager, set()).update(fields)

    def _managed(self, resource: Resource, key: Key) -> Sequence[Object]:
        """`managedFields`, as far as they tell who owns spec.replicas."""
        owners = self._owners.get((resource.plural, key), {})
        return [
            {"manager": name, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
            for name, fields in sorted(owners.items())
            if ("spec", "replicas") in fields
        ]

    def _tell(self, resource: Resource, kind: str, obj: Object) -> None:
        self._history.append((self._version, resource.plural, kind, copy.deepcopy(obj)))
        self._changed.set()


def _read(path: str) -> tuple[Resource, Key, str | None]:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource = next(r for r in RESOURCES if r.plural == rest[0])
    return resource, (namespace, rest[1] if len(rest) > 1 else ""), rest[2] if len(rest) > 2 else None


def _identity(resource: Resource) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind}


def _selected(obj: Object, selector: str | None) -> bool:
    labels = obj["metadata"].get("labels") or {}
    for part in (selector or "").split(","):
        name, _, value = part.partition("=")
        if part and (name not in labels or ("=" in part and labels[name] != value)):
            return False
    return True


def _leaves(value: Object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, child in value.items():
        if isinstance(child, dict) and child:
            yield from _leaves(child, (*path, name))
        else:
            yield (*path, name), child


def _merge(held: Any, given: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(given, dict):
        return given
    result = dict(held) if isinstance(held, dict) else {}
    for name, value in given.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _look(obj: Any, path: Path) -> Any:
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def _put(obj: Object, path: Path, value: Any) -> None:
    for name in path[:-1]:
        obj = obj.setdefault(name, {})
    obj[path[-1]] = value


def _drop(obj: Object, path: Path) -> None:
    for name in path[:-1]:
        obj = obj.get(name) or {}
    obj.pop(path[-1], None)


def _without_version(obj: Object) -> Object:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}}


def _status(code: int, reason: str, message: str) -> ApiError:
    return api_error(code, {"reason": reason, "message": message})
