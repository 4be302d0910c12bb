"""Tenant: who may call which models, in which classes, with which quota."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import Field

from headrace.api.cel import Form, Rule
from headrace.api.common import MAP_BY_NAME, MAP_BY_TYPE, ApiType, Count, Metadata, Name, NamedRef
from headrace.api.conditions import OBSERVED_GENERATION, Condition

Limit = Annotated[int, Field(ge=1, le=10**15)]


class ApiKey(ApiType):
    """A key's hash; the key itself is never stored."""

    name: Name = Field(description="Name of the key, for people.")
    sha256: Annotated[
        str,
        Field(max_length=64),
        Form(r"^[0-9a-f]{64}$", "must be 64 digits of lower-case hex, as `headrace key new` prints them"),
    ] = Field(description="SHA-256 of a random 256-bit key as `headrace key new` prints it, in lower-case hex.")
    expires_at: str | None = Field(
        None, description="When the key stops working, RFC 3339.", json_schema_extra={"format": "date-time"}
    )

    def expired(self, now: datetime) -> bool:
        """At `now`; a time that cannot be read has passed, as for the gateway."""
        if self.expires_at is None:
            return False
        try:
            moment = datetime.fromisoformat(self.expires_at)
        except ValueError:
            return True
        return now >= (moment if moment.tzinfo else moment.replace(tzinfo=UTC))


class Quota(ApiType):
    """Limits of a tenant, over all its keys and models. An absent limit does not limit."""

    requests_per_minute: Limit | None = Field(None, description="Requests per minute.")
    tokens_per_minute: Limit | None = Field(None, description="Prompt and output tokens per minute.")
    tokens_per_day: Limit | None = Field(None, description="Prompt and output tokens per day (UTC).")
    concurrent_requests: Limit | None = Field(None, description="Requests at one time, queued ones included.")
    max_tokens_per_request: Limit | None = Field(
        None, description="Output tokens of one request; a request that asks for more is refused."
    )

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"!has(self.maxTokensPerRequest) || !has(self.{limit}) || self.maxTokensPerRequest <= self.{limit}",
            f"maxTokensPerRequest must not exceed {limit}: such a request could never be admitted",
            field=".maxTokensPerRequest",
            holds=lambda quota, field=field: quota.admits_longest(getattr(quota, field)),  # type: ignore[misc]
        )
        for limit, field in (("tokensPerMinute", "tokens_per_minute"), ("tokensPerDay", "tokens_per_day"))
    )

    def admits_longest(self, limit: int | None) -> bool:
        """The longest request that may be asked for is within the limit; None: no limit."""
        return None in (self.max_tokens_per_request, limit) or self.max_tokens_per_request <= limit  # type: ignore[operator]


class TenantSpec(ApiType):
    """What the tenant may do."""

    api_keys: Annotated[list[ApiKey], Field(max_length=64)] = Field(
        default_factory=list,
        description="Hashes of the keys that identify this tenant.",
        json_schema_extra=MAP_BY_NAME,
    )
    models: Annotated[list[NamedRef], Field(max_length=256)] = Field(
        default_factory=list,
        description="Models of this namespace that the tenant may call.",
        json_schema_extra=MAP_BY_NAME,
    )
    classes: Annotated[list[Name], Field(max_length=16)] = Field(
        default_factory=list,
        description="Classes that the tenant may use; the first one that a Model's objective has is the default. "
        "A Model without an objective has the class `default`, which is open to every tenant, whatever stands here.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    cache_group: Name | None = Field(
        None, description="Tenants of one group share prefix cache on Models with scope group."
    )
    quota: Quota = Field(default_factory=Quota, description="Limits; absent ones do not limit.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.apiKeys) || self.apiKeys.all(k, self.apiKeys.exists_one(other, other.sha256 == k.sha256))",
            "two keys have the same sha256: each entry must be a key of its own",
            field=".apiKeys",
            holds=lambda spec: len({key.sha256 for key in spec.api_keys}) == len(spec.api_keys),
        ),
    )


class TenantUsage(ApiType):
    """Live figures, rounded."""

    requests_last_minute: Count = Field(0, description="Requests of the last 60 seconds.")
    tokens_last_minute: Count = Field(0, description="Prompt and output tokens of the last 60 seconds.")
    tokens_today: Count = Field(0, description="Prompt and output tokens since midnight UTC.")
    concurrent_requests: Count = Field(0, description="Requests under way, queued ones included.")


class TenantStatus(ApiType):
    """What the operator and the gateways saw."""

    observed_generation: int = Field(-1, description=OBSERVED_GENERATION)
    usage: TenantUsage | None = Field(None, description="What the tenant uses, over all gateways.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready (AllKeysExpired, or as the others say), Accepted (False: KeyInUse, ClassUnknown, ...), "
        "Enforced (every ready gateway knows this generation).",
        json_schema_extra=MAP_BY_TYPE,
    )


class Tenant(ApiType):
    """Who may call which models, in which classes, with which quota."""

    metadata: Metadata
    spec: TenantSpec
    status: TenantStatus = Field(default_factory=TenantStatus)
