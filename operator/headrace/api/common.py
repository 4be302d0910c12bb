"""What all kinds share: the base class, references and object metadata."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "headrace.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "headrace"

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Percent = Annotated[int, Field(ge=0, le=100)]


class ApiType(BaseModel):
    """A frozen part of a custom resource. Objects read from the API ignore unknown fields."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


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
