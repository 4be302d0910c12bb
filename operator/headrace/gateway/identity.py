"""Who calls: key -> Tenant -> namespace -> Model -> class. Nothing else that a client sends counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.api.model import Model
from headrace.api.slo import ServiceClass
from headrace.api.tenant import Tenant
from headrace_wire.reasons import Reason, RequestError

if TYPE_CHECKING:
    from headrace.gateway.world import World

_ONCE = (b"authorization", b"x-headrace-class", b"x-headrace-deadline-ms", b"content-encoding")
MAX_KEY_BYTES = 512  # longer credentials are refused unhashed
_FOREVER = float("inf")


@dataclass(frozen=True)
class KeyHolder:
    """Whose key this is, and until when it works (unix seconds)."""

    tenant: Tenant
    expires_at: float


@dataclass(frozen=True)
class Target:
    """What an authenticated request may use."""

    tenant: Tenant
    model: Model
    service: ServiceClass


class KeyIndex:
    """SHA-256 of a key -> its holder. Of two tenants with one key the older has it (then the lesser name)."""

    def __init__(self, tenants: Iterable[Tenant]):
        self._holders: dict[bytes, KeyHolder] = {}
        for tenant in sorted(tenants, key=_age):
            for key in tenant.spec.api_keys:
                holder = KeyHolder(tenant, _expiry(key.expires_at))
                self._holders.setdefault(bytes.fromhex(key.sha256), holder)

    def find(self, key: bytes, now: float) -> Tenant | None:
        """The tenant of this key, or None if it is unknown or has expired at `now` (unix seconds)."""
        holder = self._holders.get(hashlib.sha256(key).digest())
        return None if holder is None or now >= holder.expires_at else holder.tenant


def _age(tenant: Tenant) -> tuple[str, str, str]:
    meta = tenant.metadata
    return (meta.creation_timestamp or "9999", meta.namespace, meta.name)


def _expiry(moment: str | None) -> float:
    """Unix seconds of an RFC 3339 time; a time that cannot be read has passed."""
    if moment is None:
        return _FOREVER
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        return 0.0
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def check_headers(pairs: Sequence[tuple[bytes, bytes]], headers: dict[bytes, bytes]) -> None:
    """Raises RequestError for headers that nobody should send: two of one that counts."""
    if len(pairs) != len(headers):
        names = [name for name, _ in pairs]
        for name in _ONCE:
            if names.count(name) > 1:
                raise RequestError(Reason.INVALID_REQUEST, f"the header {name.decode()} was sent more than once")


def authenticate(authorization: bytes | None, keys: KeyIndex, now: float) -> Tenant:
    """The tenant of an `Authorization: Bearer KEY` header. Raises RequestError UNAUTHORIZED."""
    if authorization is None:
        raise RequestError(Reason.UNAUTHORIZED, "no API key: send the header Authorization: Bearer KEY")
    scheme, _, key = authorization.strip().partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key:
        raise RequestError(Reason.UNAUTHORIZED, "the Authorization header must read: Bearer KEY")
    tenant = keys.find(key, now) if len(key) <= MAX_KEY_BYTES else None
    if tenant is None:
        raise RequestError(Reason.UNAUTHORIZED, "the API key is not known or has expired")
    return tenant


def resolve(world: World, tenant: Tenant, name: str, wanted: str | None) -> Target:
    """The Model `name` of the tenant's namespace and the class to serve it in; `wanted` is x-headrace-class.

    Raises RequestError MODEL_NOT_FOUND, MODEL_NOT_ALLOWED or CLASS_NOT_ALLOWED.
    """
    model = world.models.get((tenant.metadata.namespace, name))
    if model is None:
        raise RequestError(Reason.MODEL_NOT_FOUND, f"the model {name!r} does not exist", param="model")
    if all(ref.name != name for ref in tenant.spec.models):
        raise RequestError(Reason.MODEL_NOT_ALLOWED, f"this key may not use the model {name!r}", param="model")
    offered = world.classes_of(model)
    allowed = [c.name for c in offered] if world.is_open(model) else tenant.spec.classes
    return Target(tenant, model, choose_class(offered, allowed, wanted))


def choose_class(offered: Sequence[ServiceClass], allowed: Sequence[str], wanted: str | None) -> ServiceClass:
    """The first allowed class that is offered, or the wanted one. Raises RequestError CLASS_NOT_ALLOWED."""
    by_name = {c.name: c for c in offered}
    for name in [wanted] if wanted else allowed:
        if name in by_name and name in allowed:
            return by_name[name]
    what = f"the class {wanted!r} cannot be used" if wanted else "no class can be used"
    raise RequestError(
        Reason.CLASS_NOT_ALLOWED,
        f"{what}: this key may use [{', '.join(allowed)}], the model offers [{', '.join(by_name)}]",
        param="x-headrace-class",
    )
