"""Writes: server-side apply under one field manager, never forced, and only while `guard` allows it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from headrace.cluster.client import APPLY, Client, Object
from headrace.cluster.errors import ApiError, Conflict, NotFound
from headrace.cluster.resources import Resource, key_of

REPLICAS = ".spec.replicas"
REPLICAS_FIELD: Object = {"f:spec": {"f:replicas": {}}}  # the same, as managedFields tell it
UNDECLARED = "field not declared in schema"  # how the API server refuses a field that it does not know


def _always() -> None:
    return None


class Applier:
    """Applies whole objects. `guard` is called before each write and raises NotLeader where none is allowed."""

    def __init__(self, client: Client, manager: str, guard: Callable[[], None] = _always):
        self._client = client
        self._manager = manager
        self._guard = guard

    async def apply(self, resource: Resource, obj: Object) -> Object:
        """Apply `obj`; what this manager applied before and `obj` lacks is removed. Raises Conflict, never forces."""
        namespace, name = key_of(obj)
        return await self._patch(resource.path(namespace, name), obj)

    async def apply_workload(self, resource: Resource, obj: Object) -> tuple[Object, str | None]:
        """Apply an object with `spec.replicas`; where another manager owns that field, apply without it.

        Gives the object and the other manager's name, also while both happen to want the same (None: the field is
        ours alone). Raises Conflict for any other field.
        """
        try:
            written = await self.apply(resource, obj)
            return written, replicas_owner(written, self._manager)
        except Conflict as conflict:
            if set(conflict.owners) != {REPLICAS}:
                raise
            rest = copy.deepcopy(obj)
            del rest["spec"]["replicas"]
            return await self.apply(resource, rest), conflict.owners[REPLICAS]

    async def apply_status(self, resource: Resource, obj: Object) -> Object:
        """Apply the `status` of an existing object. Raises NotFound where it is gone."""
        namespace, name = key_of(obj)
        return await self._patch(resource.path(namespace, name, "status"), obj)

    async def annotate(self, resource: Resource, obj: Object, annotations: Mapping[str, str | None]) -> Object:
        """Merge annotations into this very object (None takes one away). Raises Conflict where it is another by now."""
        self._guard()
        body = {"metadata": {"uid": obj["metadata"]["uid"], "annotations": dict(annotations)}}
        written = await self._client.patch(resource.path(*key_of(obj)), body)
        return {"apiVersion": resource.api_version, "kind": resource.kind, **written}

    async def delete(self, resource: Resource, obj: Object) -> bool:
        """Delete this very object; False where it is gone or is another one by now."""
        self._guard()
        namespace, name = key_of(obj)
        try:
            await self._client.delete(resource, namespace, name, uid=obj["metadata"].get("uid"))
        except (NotFound, Conflict):
            return False
        return True

    async def _patch(self, path: str, obj: Object) -> Object:
        self._guard()
        params = {"fieldManager": self._manager, "force": "false", "fieldValidation": "Strict"}
        try:
            return await self._client.patch(path, obj, content_type=APPLY, params=params)
        except ApiError as error:
            if error.status == 500 and UNDECLARED in error.message:
                cure = "the custom resource definitions are older than the operator: upgrade the chart headrace-crds"
                raise ApiError(422, {"reason": "Invalid", "message": f"{cure} ({error.message})"}) from error
            raise


def replicas_owners(obj: Object) -> list[str]:
    """The field managers that own `spec.replicas`."""
    entries = obj["metadata"].get("managedFields") or ()
    owned = [e for e in entries if "f:replicas" in ((e.get("fieldsV1") or {}).get("f:spec") or {})]
    return [str(entry.get("manager")) for entry in owned]


def replicas_owner(obj: Object, manager: str) -> str | None:
    """A field manager other than `manager` that owns `spec.replicas`."""
    return next((owner for owner in replicas_owners(obj) if owner != manager), None)
