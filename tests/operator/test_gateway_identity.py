"""Key -> Tenant -> Model -> class; and what an ended request counts as."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from headrace.api.model import Model
from headrace.api.slo import ServiceClass, ServiceLevelObjective
from headrace.api.tenant import Tenant
from headrace.gateway.identity import KeyIndex, authenticate, resolve
from headrace.gateway.ledger import ClassBook, Outcome, Times, measure, missed_already, within
from headrace.gateway.world import Address, World
from headrace_wire.reasons import Reason, RequestError

NOW = 1_800_000_000.0  # 2027-01-15


def tenant(name: str, *keys: dict[str, Any], created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Tenant:
    meta = {"name": name, "namespace": "a", "uid": name, "creationTimestamp": created}
    return Tenant.model_validate({"metadata": meta, "spec": {"apiKeys": list(keys), **spec}})


def key(secret: str, **fields: str) -> dict[str, Any]:
    return {"name": secret, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}


def model(name: str, slo: str | None = None) -> Model:
    spec: dict[str, Any] = {"source": {"uri": "builtin://demo"}}
    if slo:
        spec["serviceLevelRef"] = {"name": slo}
    return Model.model_validate({"metadata": {"name": name, "namespace": "a"}, "spec": spec})


CLASSES = [
    {"name": "interactive", "priority": 100, "ttft": "500ms", "tpot": "50ms", "e2e": "30s", "maxQueueAge": "250ms"},
    {"name": "batch", "priority": 10, "ttft": "60s", "tpot": "500ms", "maxQueueAge": "30s"},
]
SLO = ServiceLevelObjective.model_validate(
    {"metadata": {"name": "chat", "namespace": "a"}, "spec": {"classes": CLASSES}}
)
INTERACTIVE: ServiceClass = SLO.spec.classes[0]
TENANTS = [
    tenant(
        "search",
        key("good"),
        key("old", expiresAt="2026-06-01T00:00:00Z"),
        key("later", expiresAt="2027-06-01T00:00:00+02:00"),
        key("shared"),
        models=[{"name": "chat"}, {"name": "open"}],
        classes=["batch", "interactive"],
    ),
    tenant("thief", key("shared"), created="2026-02-01T00:00:00Z"),
    tenant("stranger", key("other"), models=[{"name": "chat"}], classes=["gold"]),
]


def world() -> World:
    made = World(models={("a", m.metadata.name): m for m in (model("chat", "chat"), model("open"), model("secret"))})
    made.slos = {("a", "chat"): SLO}
    made.set_tenants({("a", t.metadata.name): t for t in TENANTS})
    return made


ACCEPTED = {"good": "search", "later": "search", "shared": "search", "other": "stranger"}


@pytest.mark.parametrize(("secret", "owner"), ACCEPTED.items(), ids=ACCEPTED.keys())
def test_a_key_names_its_tenant(secret: str, owner: str) -> None:
    found = authenticate(f"Bearer {secret}".encode(), KeyIndex(TENANTS), NOW)
    assert found.metadata.name == owner


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Basic good", b"good", b"Bearer bad", b"Bearer old", b"Bearer " + b"x" * 600],
    ids=["absent", "empty", "no key", "blank key", "basic", "bare key", "unknown", "expired", "too long"],
)
def test_any_other_header_is_unauthorized(header: bytes | None) -> None:
    with pytest.raises(RequestError) as caught:
        authenticate(header, KeyIndex(TENANTS), NOW)
    assert caught.value.reason is Reason.UNAUTHORIZED
    assert "good" not in caught.value.message


def test_an_expiry_that_cannot_be_read_has_passed() -> None:
    with pytest.raises(RequestError):
        authenticate(b"Bearer k", KeyIndex([tenant("t", key("k", expiresAt="soon"))]), NOW)


RESOLVED = {
    "first of the tenant's classes that the model has": ("search", "chat", None, "batch"),
    "wanted": ("search", "chat", "interactive", "interactive"),
    "built-in objective is open": ("search", "open", None, "default"),
}


@pytest.mark.parametrize(("who", "name", "wanted", "service"), RESOLVED.values(), ids=RESOLVED.keys())
def test_a_request_gets_a_class(who: str, name: str, wanted: str | None, service: str) -> None:
    made = world()
    assert resolve(made, made.tenants[("a", who)], name, wanted).service.name == service


UNRESOLVED = {
    "unknown model": ("search", "nothing", None, Reason.MODEL_NOT_FOUND, ["nothing"]),
    "model not allowed": ("search", "secret", None, Reason.MODEL_NOT_ALLOWED, ["secret"]),
    "class not offered": ("search", "chat", "gold", Reason.CLASS_NOT_ALLOWED, ["[batch, interactive]", "gold"]),
    "none in common": ("stranger", "chat", None, Reason.CLASS_NOT_ALLOWED, ["[gold]", "[interactive, batch]"]),
    "class not allowed": ("stranger", "chat", "batch", Reason.CLASS_NOT_ALLOWED, ["[gold]", "[interactive, batch]"]),
}


@pytest.mark.parametrize(("who", "name", "wanted", "reason", "words"), UNRESOLVED.values(), ids=UNRESOLVED.keys())
def test_a_request_is_refused(who: str, name: str, wanted: str | None, reason: Reason, words: list[str]) -> None:
    made = world()
    with pytest.raises(RequestError) as caught:
        resolve(made, made.tenants[("a", who)], name, wanted)
    assert caught.value.reason is reason
    assert all(word in caught.value.message for word in words)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert Address("p", "fd00::1", 8000).netloc == "[fd00::1]:8000"
    assert Address("p", "10.0.0.1", 8000).netloc == "10.0.0.1:8000"


JUDGED = {
    "in time": (Times(0, 0.1, 0.4, 1.4), 1.5, 21, True),
    "first token late": (Times(0, 0.1, 0.6, 1.4), 1.5, 21, False),
    "tokens slow": (Times(0, 0.1, 0.4, 3.4), 3.5, 21, False),
    "the whole late": (Times(0, 0.1, 0.4, 30.5), 30.6, 1000, False),
    "one token": (Times(0, 0.1, 0.4, 0.4), 0.5, 1, True),
    "no content in time": (Times(0, 0.1), 0.5, 0, True),
    "no content late": (Times(0, 0.1), 0.6, 0, False),
}


@pytest.mark.parametrize(("times", "ended", "tokens", "good"), JUDGED.values(), ids=JUDGED.keys())
def test_good_means_every_target_was_met(times: Times, ended: float, tokens: int, good: bool) -> None:
    assert within(INTERACTIVE, measure(times, ended, tokens)) is good


def test_latencies_are_those_of_the_definitions() -> None:
    measured = measure(Times(10, 10.5, 11, 13), 13.5, 5)
    assert (measured.ttft, measured.tpot, measured.e2e) == (1, 0.5, 3.5)
    assert measure(Times(10), 11, 0).ttft is None


@pytest.mark.parametrize(
    ("times", "now", "missed"),
    [(Times(0), 0.4, False), (Times(0), 0.6, True), (Times(0, 0, 0.4), 20, False), (Times(0, 0, 0.4), 31, True)],
    ids=["waiting in time", "waiting too long", "streaming in time", "streaming too long"],
)
def test_a_cancel_is_late_only_if_a_target_had_passed(times: Times, now: float, missed: bool) -> None:
    assert missed_already(INTERACTIVE, times, now) is missed


def test_quota_and_early_cancels_are_not_offered() -> None:
    book = ClassBook()
    for outcome in Outcome:
        book.end(outcome, 10, target_missed=False)
    book.end(Outcome.CANCELLED, 10, target_missed=True)
    assert sum(book.outcomes.values()) == 7
    assert (book.offered, book.offered_tokens) == (5, 50)
