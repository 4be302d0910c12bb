"""`headrace explain tenant`: keys, quotas, Models and refusals in words, from files and from gateways themselves."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.api.gateway_state import GatewayState, TenantState
from headrace.api.tenant import Tenant
from headrace.cli.main import main
from headrace.cli.tenant_report import CAUSES, Scene, report
from headrace.testing.fake_engine import FakeEngine
from headrace.testing.fake_world import make_model, make_tenant, make_world, serving, set_engines
from headrace_wire.reasons import Reason

NOW = 1_800_000_000.0  # in January 2027
SHA = "0123456789abcdef" * 4
SLO: dict[str, Any] = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "ServiceLevelObjective",
    "metadata": {"name": "chat", "namespace": "team-a"},
    "spec": {"classes": [{"name": "quick", "ttft": "1s", "tpot": "100ms", "maxQueueAge": "250ms"}]},
}


def model(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": "Serving" if ready == "True" else "ImagePull"}
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"source": {"uri": "builtin://demo"}, **spec},
        "status": {"conditions": [{**condition, "message": ""}]},
    }


def tenant(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    full: dict[str, Any] = {
        "apiKeys": [{"name": "ci", "sha256": SHA}],
        "models": [{"name": "demo"}],
        "classes": ["quick"],
        **spec,
    }
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "search", "namespace": "team-a", "generation": 1},
        "spec": full,
        "status": {"observedGeneration": 1, **(status or {})},
    }


def row(**fields: Any) -> TenantState:
    return TenantState(namespace="team-a", name="search", **fields)


def state(*tenants: TenantState) -> GatewayState:
    return GatewayState(gateway="gw", started_at=0.0, uptime_s=1.0, tenants=list(tenants))


def told(
    given: dict[str, Any], *objects: dict[str, Any], states: tuple[GatewayState, ...] = (), now: float = NOW
) -> str:
    from headrace.api.model import Model
    from headrace.api.slo import ServiceLevelObjective

    models = {o["metadata"]["name"]: Model.model_validate(o) for o in objects if o["kind"] == "Model"}
    slos = {o["metadata"]["name"]: ServiceLevelObjective.model_validate(o) for o in objects if o["kind"] != "Model"}
    return report(Scene(Tenant.model_validate(given), models, slos, states, now))


DEMO = model("demo", serviceLevelRef={"name": "chat"})
REFUSED_CONDITION = {"type": "Accepted", "status": "False", "reason": "KeyInUse", "message": "key ci is tenant a's"}
PENDING = {"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "Waiting for the operator."}
UNSEEN = {**DEMO, "status": {"conditions": [PENDING]}}
FULL = state(row(requests_last_minute=3, tokens_last_minute=10, concurrent_requests=1))

SAID: dict[str, tuple[str, list[str]]] = {
    "all is well": (
        told(tenant(), DEMO, SLO),
        ["nothing that is known here", f"ci  sha256 {SHA[:12]}…  works, never expires", "demo  ready  class quick"],
    ),
    "no key": (told(tenant(apiKeys=[]), DEMO, SLO), ["it has no key", "none: `headrace key new` makes one"]),
    "an expired key": (
        told(tenant(apiKeys=[{"name": "old", "sha256": SHA, "expiresAt": "2026-01-01T00:00:00Z"}]), DEMO, SLO),
        ["all of its keys have expired (401)", "expired 2026-01-01T00:00:00Z"],
    ),
    "a key that will expire": (
        told(tenant(apiKeys=[{"name": "new", "sha256": SHA, "expiresAt": "2030-01-01T00:00:00Z"}]), DEMO, SLO),
        ["works, expires 2030-01-01T00:00:00Z", "nothing that is known here"],
    ),
    "another's key": (
        told(tenant({"conditions": [REFUSED_CONDITION]}), DEMO, SLO),
        ["Accepted is False (KeyInUse): key ci is tenant a's"],
    ),
    "no model": (told(tenant(models=[]), DEMO, SLO), ["spec.models is empty: every", "may not call: demo"]),
    "a model that is not there": (
        told(tenant(), model("other"), SLO),
        ["Model demo of spec.models does not exist", "demo  there is no such Model", "may not call: other"],
    ),
    "one of two models that is not there": (
        told(
            tenant(
                {"conditions": [{**REFUSED_CONDITION, "reason": "ModelNotFound", "message": "none is named second"}]},
                models=[{"name": "demo"}, {"name": "second"}],
            ),
            DEMO,
            SLO,
        ),
        [
            "served\n  only requests for second, not those for demo: Model second of spec.models does not exist in "
            "this namespace (404 model_not_found)\n\nKeys",
            "Accepted  False  ModelNotFound  none is named second",
        ],
    ),
    "two models that are not there": (
        told(tenant(models=[{"name": "one"}, {"name": "two"}])),
        ["served\n  Model one of spec.models does not exist", "\n  Model two of spec.models does not exist"],
    ),
    "a model that no operator has seen": (
        told(tenant(), UNSEEN, SLO),
        ["Model demo is served by nothing: no operator has seen it yet", "demo  not known to be ready  class quick"],
    ),
    "a namespace that nobody serves": (
        told({**tenant(), "status": {"conditions": [PENDING]}}, UNSEEN, SLO),
        [
            "its state is not known yet\nIt may not be in force: no operator has seen it yet. Either",
            "namespace team-a is not among `namespaces` of any installation",
            "no gateway may know its keys (401)",
            "Conditions\n  none yet",
        ],
    ),
    "no class": (
        told(tenant(classes=["slow"]), DEMO, SLO),
        ["Model demo offers none of spec.classes (403", "spec.classes has [slow], the Model offers [quick]"],
    ),
    "a model without an objective": (told(tenant(classes=[]), model("demo")), ["class default  open to every tenant"]),
    "a model that is not ready": (
        told(tenant(), model("demo", "False", serviceLevelRef={"name": "chat"}), SLO),
        ["demo  not ready (ImagePull)  class quick"],
    ),
    "a model held at zero": (
        told(tenant(), model("demo", replicas=0, serviceLevelRef={"name": "chat"}), SLO),
        [
            "Model demo is held at 0 replicas by spec.replicas with spec.scaling.mode Off, and no request wakes it",
            "`kubectl scale models.headrace.dev demo -n team-a --replicas=1`, or mode Auto (503 no_capacity)",
        ],
    ),
    "a model held at zero, as gateways tell": (
        told(
            tenant(),
            model("demo", replicas=0, serviceLevelRef={"name": "chat"}),
            SLO,
            states=(state(row(refused={"no_capacity": 1})),),
        ),
        ["Model demo is held at 0 replicas by spec.replicas", "1  no_capacity  no replica was there"],
    ),
    "a model that a request wakes": (
        told(
            tenant(),
            model(
                "demo",
                serviceLevelRef={"name": "chat"},
                scaling={"mode": "Auto", "minReplicas": 0, "maxReplicas": 1},
            ),
            SLO,
        ),
        ["nothing that is known here"],
    ),
    "use of the status": (
        told(tenant({"usage": {"requestsLastMinute": 2}}, quota={"requestsPerMinute": 5}), DEMO, SLO),
        [
            "status.usage, some seconds old",
            "requestsPerMinute   2  of 5      3 left",
            "tokensPerDay        0  no limit",
        ],
    ),
    "a quota that no request fits": (
        told(tenant(quota={"tokensPerMinute": 1, "tokensPerDay": 2}), DEMO, SLO),
        ["spec.quota.tokensPerMinute is 1: the shortest request takes 2 tokens, so raise it"],
    ),
    "use that nobody told": (told(tenant(), DEMO, SLO), ["nobody has told what is in use", "only gateways know"]),
    "use of two gateways": (
        told(tenant(quota={"requestsPerMinute": 6, "maxTokensPerRequest": 9}), DEMO, SLO, states=(FULL, FULL)),
        [
            "gateways, now",
            "requestsPerMinute   6   of 6      0 left",
            "requestsPerMinute is used up, 6 of 6: requests are refused (429 quota_exceeded)",
            "one request may ask for 9 output tokens at most",
            "since the start of 2 gateways that were asked",
        ],
    ),
    "refusals": (
        told(
            tenant(),
            DEMO,
            SLO,
            states=(
                state(row(outcomes={"good": 5, "quota": 2}, refused={"quota_exceeded": 2, "model_not_found": 1})),
                state(row(outcomes={"good": 1}, refused={"quota_exceeded": 1})),
            ),
        ),
        [
            "ended: 6 good, 2 quota",
            "3  quota_exceeded   a limit of spec.quota was used up",
            "1  model_not_found  no Model",
        ],
    ),
    "a gateway of other namespaces": (told(tenant(), DEMO, SLO, states=(state(),)), ["do not know this tenant"]),
}


@pytest.mark.parametrize(("text", "parts"), SAID.values(), ids=SAID)
def test_a_tenant_is_explained(text: str, parts: list[str]) -> None:
    for part in parts:
        assert part in text, text
    assert SHA not in text, "no whole hash"


def test_every_error_that_a_tenants_request_can_end_with_has_its_cause() -> None:
    never = {"invalid_api_key", "not_found", "method_not_allowed", "request_timeout", "unsupported_media_type"}
    silent = {"cancelled", "slow_reader"}
    assert CAUSES.keys() == {reason.value for reason in Reason} - never - silent


def test_gateways_count_what_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    objects = tmp_path / "objects.json"
    given = tenant(models=[{"name": "m"}], quota={"requestsPerMinute": 2})
    objects.write_text(
        json.dumps({"kind": "List", "items": [given, model("m", serviceLevelRef={"name": "chat"}), SLO]})
    )

    async def run() -> int:
        mine = make_tenant(quota={"requestsPerMinute": 2})
        world = make_world([make_model(), make_model("closed")], [mine])
        async with FakeEngine(tokens_per_s=2000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            for name, key in (("m", "key"), ("closed", "key"), ("none", "key"), ("m", "key"), ("m", "key"), ("m", "x")):
                body = {"model": name, "prompt": "hi", "max_tokens": 1}
                headers = {"authorization": f"Bearer {key}"}
                await gateway.http.post(gateway.url + "/v1/completions", json=body, headers=headers)
            said = ["explain", "tenant", "search", "-n", "team-a", "-f", str(objects), "--state", gateway.state_url]
            return await asyncio.to_thread(main, said)

    assert asyncio.run(run()) == 0
    text = capsys.readouterr().out
    for part in ("ended: 2 good, 1 quota", "1  quota_exceeded", "1  model_not_allowed", "1  model_not_found"):
        assert part in text, text
    assert "requestsPerMinute is used up, 2 of 2" in text and "invalid_api_key" not in text


def test_a_tenant_that_is_gone_leaves_no_counters() -> None:
    async def run() -> None:
        world = make_world()
        async with FakeEngine(tokens_per_s=2000.0) as engine, serving(world) as gateway:
            set_engines(world, engine)
            body = {"model": "none", "prompt": "hi"}
            headers = {"authorization": "Bearer key"}
            await gateway.http.post(gateway.url + "/v1/completions", json=body, headers=headers)
            assert gateway.service.books.tenants.keys() == {("team-a", "search")}
            world.set_tenants({})
            world.notify()
            assert not gateway.service.books.tenants

    asyncio.run(run())


def test_states_come_from_files_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "state.json"
    saved.write_bytes(msgspec.json.encode(state(row(refused={"queue_full": 4}))))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(tenant())))
    assert main(["explain", "tnt", "search", "-f", "-", "--state", str(saved)]) == 0
    assert "4  queue_full  the Model's queue was full" in capsys.readouterr().out


WRONG: dict[str, tuple[list[str], str]] = {
    "no such tenant": (["other", "-f", "{objects}"], "holds no Tenant named other"),
    "no such namespace": (["search", "-n", "b", "-f", "{objects}"], "holds no Tenant named search"),
    "nobody there": (["search", "-f", "{objects}", "--state", "http://127.0.0.1:1"], "--state http://127.0.0.1:1: "),
    "no state": (["search", "-f", "{objects}", "--state", "{objects}"], "is no gateway's state"),
    "no file": (["search", "-f", "{objects}", "--state", "/nowhere/x"], "No such file"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    objects = tmp_path / "objects.json"
    objects.write_text(json.dumps(tenant()))
    assert main(["explain", "tenant", *(one.format(objects=objects) for one in arguments)]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "tenant", "--help"])
    said = capsys.readouterr().out
    assert "kubectl port-forward -n headrace deploy/headrace-gateway 9090" in said
    assert "--state http://127.0.0.1:9090" in said and "never the" in said
