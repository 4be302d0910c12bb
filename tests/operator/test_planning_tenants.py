"""What a Tenant's keys make of its status as time passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace.api.tenant import Tenant
from headrace.planning.tenants import TenantReport, TenantView, key_owners, tenant_status

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ends", "ready"),
    [
        ((-1,), ("False", "AllKeysExpired")),
        ((0,), ("False", "AllKeysExpired")),
        ((1,), ("True", "Ready")),
        ((-1, -60), ("False", "AllKeysExpired")),
        ((-1, 60), ("True", "Ready")),
        ((-1, None), ("True", "Ready")),
        ((), ("True", "Ready")),
    ],
    ids=["past", "now", "soon", "both", "one-of-two", "one-for-ever", "no-key"],
)
def test_a_tenant_without_a_key_that_works_is_not_ready(ends: tuple[int | None, ...], ready: tuple[str, str]) -> None:
    moments = [None if end is None else (NOW + timedelta(seconds=end)).isoformat() for end in ends]
    keys = [{"name": f"k{i}", "sha256": f"{i:064x}", "expiresAt": moment} for i, moment in enumerate(moments)]
    of = Tenant.model_validate(
        {"metadata": {"name": "a", "namespace": "x", "uid": "u", "generation": 1}, "spec": {"apiKeys": keys}}
    )
    view = TenantView(
        tenant=of,
        models={},
        key_owners=key_owners([of]),
        reports=[TenantReport("g", 1)],
        usage_written_at=None,
        now=NOW,
    )
    conditions = {c.type: c for c in tenant_status(view).conditions}
    found = conditions["Ready"]
    assert (found.status, found.reason) == ready
    assert conditions["Accepted"].status == conditions["Enforced"].status == "True"
    if ready[0] == "False":
        assert all(f"'k{i}' ({moment})" in found.message for i, moment in enumerate(moments))


@pytest.mark.parametrize(("count", "says"), [(0, "0 keys, 0 models"), (1, "1 key, 1 model"), (2, "2 keys, 2 models")])
def test_an_accepted_tenant_counts_what_it_has(count: int, says: str) -> None:
    keys = [{"name": f"k{i}", "sha256": f"{i:064x}"} for i in range(count)]
    models = [{"name": f"m{i}"} for i in range(count)]
    of = Tenant.model_validate(
        {"metadata": {"name": "a", "namespace": "x", "uid": "u"}, "spec": {"apiKeys": keys, "models": models}}
    )
    known = {one["name"]: None for one in models}
    view = TenantView(tenant=of, models=known, key_owners={}, reports=[], usage_written_at=None, now=NOW)
    accepted = next(c for c in tenant_status(view).conditions if c.type == "Accepted")
    assert (accepted.status, accepted.message) == ("True", says)
