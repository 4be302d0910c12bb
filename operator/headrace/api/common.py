"""What all kinds share: the base class, references and object metadata."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from headrace.api.cel import VALIDATIONS, Form, Rule

GROUP = "headrace.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "headrace"

MAP_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Schema of a list whose items are known by their `name`."""
MAP_BY_TYPE: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
"""Schema of a list of conditions."""

NO_DEFAULT: JsonDict = {"x-no-default": True}
"""Keeps a field's default out of the CRD, so that rules can tell whether the user set it."""

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Name = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Form(LABEL_PATTERN, "must consist of a-z, 0-9 and -, and begin and end with a letter or digit"),
]
SubdomainName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Form(SUBDOMAIN_PATTERN, "must consist of a-z, 0-9, - and ., and begin and end with a letter or digit"),
]
Percent = Annotated[int, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0)]


def camel(field: str) -> str:
    """A field's name in YAML: `max_queue_age` is `maxQueueAge`, `e2e` stays `e2e`."""
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


class ApiType(BaseModel):
    """A frozen part of a custom resource. Objects read from the API ignore unknown fields."""

    model_config = ConfigDict(frozen=True, alias_generator=camel, populate_by_name=True, extra="ignore")

    rules: ClassVar[tuple[Rule, ...]] = ()
    """What the API server checks of an object of this type, beyond the bounds of its fields."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        """The generated schema with the type's rules."""
        reference = handler(core)
        if cls.rules:
            schema = handler.resolve_ref_schema(reference)
            schema[VALIDATIONS] = [rule.as_schema() for rule in cls.rules]
        return reference


class NamedRef(ApiType):
    """A reference to another object of the same namespace."""

    name: Name = Field(description="Name of the object, in the same namespace.")


class Metadata(ApiType):
    """The part of an object's metadata that Headrace reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
