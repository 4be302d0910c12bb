"""Tenant: who may call which models, in which classes, with which quota."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.config import JsonDict

from headrace.api.common import ApiType, Metadata, Name, NamedRef
from headrace.api.conditions import Condition

_MAP_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
Limit = Annotated[int, Field(ge=1, le=10**15)]


class ApiKey(ApiType):
    """A key's hash; the key itself is never stored."""

    name: Name = Field(description="Name of the key, for people.")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)] = Field(
        description="SHA-256 of a random 256-bit key as `headrace key new` prints it, in lower-case hex."
    )
    expires_at: str | None = Field(
        None, description="When the key stops working, RFC 3339.", json_schema_extra={"format": "date-time"}
    )


class Quota(ApiType):
    """Limits of a tenant, over all its keys and models. An absent limit does not limit."""

    requests_per_minute: Limit | None = Field(None, description="Requests per minute.")
    tokens_per_minute: Limit | None = Field(None, description="Prompt and output tokens per minute.")
    tokens_per_day: Limit | None = Field(None, description="Prompt and output tokens per day (UTC).")
    concurrent_requests: Limit | None = Field(None, description="Requests at one time, queued ones included.")
    max_tokens_per_request: Limit | None = Field(None, description="Output tokens of one request.")


class TenantSpec(ApiType):
    """What the tenant may do."""

    api_keys: Annotated[list[ApiKey], Field(max_length=64)] = Field(
        default_factory=list,
        description="Hashes of the keys that identify this tenant.",
        json_schema_extra=_MAP_BY_NAME,
    )
    models: Annotated[list[NamedRef], Field(max_length=256)] = Field(
        default_factory=list,
        description="Models of this namespace that the tenant may call.",
        json_schema_extra=_MAP_BY_NAME,
    )
    classes: Annotated[list[Name], Field(max_length=16)] = Field(
        default_factory=list,
        description="Classes that the tenant may use; the first one that a Model's objective has is the default.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    cache_group: Name | None = Field(
        None, description="Tenants of one group share prefix cache on Models with scope group."
    )
    quota: Quota = Field(default_factory=Quota, description="Limits; absent ones do not limit.")


class TenantUsage(ApiType):
    """Live figures, rounded."""

    requests_last_minute: int = 0
    tokens_last_minute: int = 0
    tokens_today: int = 0
    concurrent_requests: int = 0


class TenantStatus(ApiType):
    """What the operator and the gateways saw."""

    observed_generation: int = -1
    usage: TenantUsage | None = None
    conditions: list[Condition] = Field(default_factory=list)


class Tenant(ApiType):
    """Who may call which models, in which classes, with which quota."""

    metadata: Metadata
    spec: TenantSpec
    status: TenantStatus = Field(default_factory=TenantStatus)
