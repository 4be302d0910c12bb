"""Objects of the API -> types, with errors that name the field as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headrace.api.model import Model
from headrace.api.model_status import ModelStatus
from headrace.api.tenant import Tenant, TenantStatus

T = TypeVar("T", bound=BaseModel)


class SpecError(ValueError):
    """An object's spec cannot be read; `problems` are field paths with what is wrong."""

    def __init__(self, problems: list[str]):
        super().__init__("; ".join(problems))
        self.problems = problems


def parse(kind: type[T], obj: Mapping[str, Any]) -> T:
    """An object of the API without its status. Raises SpecError."""
    try:
        return kind.model_validate({"metadata": obj.get("metadata"), "spec": obj.get("spec")})
    except ValidationError as error:
        raise SpecError([_problem(dict(problem)) for problem in error.errors()]) from error


def parse_model(obj: Mapping[str, Any]) -> Model:
    """A Model; a status that cannot be read counts as none. Raises SpecError."""
    return parse(Model, obj).model_copy(update={"status": status_of(ModelStatus, obj)})


def parse_tenant(obj: Mapping[str, Any]) -> Tenant:
    """A Tenant; a status that cannot be read counts as none. Raises SpecError."""
    return parse(Tenant, obj).model_copy(update={"status": status_of(TenantStatus, obj)})


def status_of(kind: type[T], obj: Mapping[str, Any]) -> T:
    """The status of an object, or an empty one."""
    try:
        return kind.model_validate(obj.get("status") or {})
    except ValidationError:
        return kind()


def _problem(error: Mapping[str, Any]) -> str:
    path = ""
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{path.lstrip('.')}: {error['msg']}"
