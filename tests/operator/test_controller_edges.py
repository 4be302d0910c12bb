"""Gateways and engines that lie, specs of other versions, Models that are stalled: the operator on fakes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from headrace.api.gateway_state import ClassState, EngineReport, GatewayState, ModelState, TenantState
from headrace.api.tenant import Tenant
from headrace.cluster.client import Object
from headrace.cluster.resources import MODELS, PODS, TENANTS
from headrace.controller.actor import Actor
from headrace.controller.gateways import Gateways, checked, targets_of
from headrace.controller.main import build
from headrace.controller.shared import GatewayView
from headrace.controller.tenants import reports_of
from headrace.testing.fake_cluster import FakeCluster
from headrace.testing.running import settings_for
from headrace_wire.protocol import EngineState, ModelInfo


def state(**changes: Any) -> GatewayState:
    base: dict[str, Any] = {"gateway": "g", "started_at": 1.0, "uptime_s": 5.0}
    return GatewayState(**{**base, **changes})


def serving(*engines: EngineReport, **of_class: Any) -> GatewayState:
    classes = [ClassState(**{"name": "default", **of_class})]
    return state(models=[ModelState(namespace="team", name="demo", classes=classes, engines=list(engines))])


def engine(pod: str = "one", **claims: Any) -> EngineReport:
    info = ModelInfo(name="demo", max_tokens=claims.pop("max_tokens", 256))
    return EngineReport(pod=pod, address="x", age_s=0.1, state=EngineState(model=info, **claims))


@pytest.mark.parametrize(
    ("lie", "names"),
    [
        pytest.param(serving(queued=-1), "queued", id="a negative count"),
        pytest.param(serving(oldest_age_s=-0.5), "oldest_age_s", id="an age in the future"),
        pytest.param(serving(offered_tokens=10**30), "offered_tokens", id="a count beyond everything"),
        pytest.param(serving(outcomes={"good": -4}), "good", id="a negative outcome"),
        pytest.param(state(uptime_s=-1.0), "uptime_s", id="a start in the future"),
        pytest.param(
            state(tenants=[TenantState(namespace="team", name="t", tokens_today=-1)]), "tokens_today", id="a tenant's"
        ),
    ],
)
def test_an_impossible_state_is_none(lie: GatewayState, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        checked(lie)


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"total": -1}, id="pages"),
        pytest.param({"max_tokens": -1}, id="context"),
        pytest.param({"waiting": 10**18}, id="queue"),
    ],
)
def test_an_engine_that_lies_loses_only_its_own_report(claims: dict[str, Any]) -> None:
    """Its image may be a user's: it must not stop the scaling of others."""
    (model,) = checked(serving(engine("liar", **claims), engine("honest"))).models
    assert [(e.pod, e.state is None) for e in model.engines] == [("liar", True), ("honest", False)]


def test_an_honest_state_is_passed_on_as_it_is() -> None:
    honest = serving(engine(), queued=3, oldest_age_s=0.2, outcomes={"good": 4})
    assert checked(honest) == honest


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(httpx.Response(200, content=b'{"gateway": "g", "started_at": NaN, "uptime_s": 1}'), id="NaN"),
        pytest.param(
            httpx.Response(200, content=b'{"gateway": "g", "started_at": 1e999, "uptime_s": 1}'), id="infinity"
        ),
        pytest.param(httpx.Response(200, content=b"<html>"), id="not JSON"),
        pytest.param(httpx.Response(200, content=b"{}"), id="fields are missing"),
        pytest.param(httpx.Response(200, content=msgspec.json.encode(serving(queued=-1))), id="impossible"),
        pytest.param(httpx.Response(302, headers={"Location": "http://elsewhere"}), id="a redirect"),
        pytest.param(httpx.ConnectError("refused"), id="unreachable"),
        pytest.param(httpx.ReadTimeout("late"), id="too late"),
    ],
)
def test_a_gateway_that_tells_nothing_usable_has_no_state(answer: httpx.Response | Exception) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
            (view,) = await Gateways(http, slices=None, port=0, url="http://gateway").poll()
        assert view.ready
        assert view.state is None

    asyncio.run(main())


def test_an_address_that_is_no_url_is_one_silent_gateway() -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as http:
            (view,) = await Gateways(http, slices=None, port=0, url="http://[::1").poll()
        assert view.state is None

    asyncio.run(main())


def test_a_gateway_of_many_slices_and_addresses_is_polled_once() -> None:
    def endpoint(n: int, *addresses: str) -> Object:
        return {"addresses": list(addresses), "targetRef": {"kind": "Pod", "name": f"gw-{n}"}}

    v4 = {"endpoints": [endpoint(n, f"10.0.0.{n}", f"10.1.0.{n}") for n in range(1, 101)]}
    v6 = {"endpoints": [endpoint(n, f"fd00::{n}") for n in range(1, 101)]}
    found = targets_of(iter([v4, v6, {"endpoints": None}]), 9090)
    assert len(found) == 100
    assert len({t.url for t in found}) == 100


# The whole operator, wired on fakes


KEY = ("team", "demo")


class Rig:
    """An operator that leads, on a FakeCluster and a gateway that answers with `state`."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.state = serving(queued=50, oldest_age_s=30.0)
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        settings = settings_for("", "team", gateway_url="http://gateway")
        self.operator = build(settings, self.fake, http)

    def _answer(self, _: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=msgspec.json.encode(self.state))

    async def model(self, name: str = "demo", **spec: Any) -> None:
        body = {"source": {"uri": "builtin://demo"}, "scaling": {"mode": "Auto", "maxReplicas": 4}, **spec}
        metadata = {"name": name, "namespace": "team"}
        await self.fake.create(MODELS, {"metadata": metadata, "spec": body})

    async def pod(self, name: str) -> None:
        """A ready pod of the Deployment, whose engine reports full slots."""
        labels = self.fake.objects["deployments", KEY]["spec"]["template"]["metadata"]["labels"]
        metadata = {"name": name, "namespace": "team", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
        await self.fake.create(PODS, {"metadata": metadata, "status": {"conditions": [ready]}})
        reports = [engine(name, running=64, total=100)]
        self.state = serving(*reports, queued=50, oldest_age_s=30.0, in_flight=64)

    async def settle(self) -> None:
        """See the world, then reconcile all that is due."""
        await self.operator.leader.attempt()
        await self.operator.resync.relist()
        while len(self.operator.queue):
            work = await self.operator.queue.get()
            await self.operator.workers._one(work)
            self.operator.queue.done(work)

    def condition(self, kind: str, name: str = "demo") -> Object:
        conditions = self.fake.objects["models", ("team", name)]["status"]["conditions"]
        found: Object = next(c for c in conditions if c["type"] == kind)
        return found


def test_a_spec_of_a_newer_schema_is_stalled_with_its_field_and_what_runs_stays() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.model()
        await rig.settle()
        before = rig.fake.objects["deployments", KEY]
        await rig.fake.patch(MODELS.path(*KEY), {"spec": {"runtime": {"name": "another"}, "novel": {"a": 1}}})
        await rig.settle()
        stalled = rig.condition("Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
        assert "spec.runtime.name" in stalled["message"]
        assert "novel" not in stalled["message"], "a field of a newer schema is no mistake"
        assert rig.fake.objects["deployments", KEY] == before
        await rig.fake.patch(MODELS.path(*KEY), {"spec": {"runtime": {"name": "headrace"}}})
        await rig.settle()
        assert rig.condition("Accepted")["status"] == "True"

    asyncio.run(main())


def test_nothing_is_decided_or_announced_for_a_stalled_model() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.model()
        await rig.settle()
        await rig.pod("one")
        await rig.fake.patch(MODELS.path(*KEY), {"spec": {"serviceLevelRef": {"name": "gone"}}})
        await rig.settle()
        for _ in range(20):
            await rig.operator.actor.tick()
        await rig.settle()
        assert rig.condition("Stalled")["reason"] == "ReferenceNotFound"
        assert rig.condition("ScalingActive")["reason"] == "NotApplied"
        notes = [note for _, _, note in _drained(rig.operator.recorder._queue)]
        assert [note for note in notes if note.action == "Scale"] == []
        assert rig.fake.objects["deployments", KEY]["spec"]["replicas"] == 1
        await rig.fake.patch(MODELS.path(*KEY), {"spec": {"serviceLevelRef": None}})
        await rig.settle()
        for _ in range(5):
            await rig.operator.actor.tick()
        await rig.settle()
        assert rig.fake.objects["deployments", KEY]["spec"]["replicas"] > 1, "the same queue scales it once it is well"

    asyncio.run(main())


def _drained(queue: asyncio.Queue[Any]) -> list[Any]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


def test_a_defect_met_with_one_model_does_not_end_the_scaling_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.model("broken")
        await rig.model("demo")
        await rig.settle()
        looked: list[str] = []
        original = Actor._look

        def look(self: Actor, model: Any, sample: Any, now: float) -> Any:
            if model.metadata.name == "broken":
                raise ZeroDivisionError("met with an odd input")
            looked.append(model.metadata.name)
            return original(self, model, sample, now)

        monkeypatch.setattr(Actor, "_look", look)
        await rig.operator.actor.tick()
        assert looked == ["demo"]

    asyncio.run(main())
    assert [r for r in caplog.records if "scaling loop failed" in r.getMessage() and r.__dict__["object"] == "broken"]


def test_of_two_ready_gateways_each_must_enforce_a_tenant() -> None:
    tenant = Tenant.model_validate({"metadata": {"name": "t", "namespace": "team", "generation": 2}, "spec": {}})

    def view(name: str, generation: int | None, *, ready: bool = True) -> GatewayView:
        known = TenantState(namespace="team", name="t", observed_generation=generation or 0, tokens_today=5)
        return GatewayView(name, ready, state(tenants=[] if generation is None else [known]))

    views = [view("a", 2), view("b", 1), view("c", None), view("leaving", 1, ready=False)]
    views.append(GatewayView("silent", True, None))
    found = {r.gateway: r.generation for r in reports_of(tenant, views)}
    assert found == {"a": 2, "b": 1, "c": None, "silent": None}


def test_a_tenant_that_is_being_deleted_keeps_no_key() -> None:
    async def main() -> None:
        rig = Rig()
        spec = {"apiKeys": [{"name": "ci", "sha256": "d" * 64}]}
        for name, created in (("older", "2026-01-01T00:00:00Z"), ("younger", "2026-01-02T00:00:00Z")):
            metadata = {"name": name, "namespace": "team", "creationTimestamp": created}
            await rig.fake.create(TENANTS, {"metadata": metadata, "spec": spec})

        def accepted() -> str:
            conditions = rig.fake.objects["tenants", ("team", "younger")]["status"]["conditions"]
            return str(next(c["reason"] for c in conditions if c["type"] == "Accepted"))

        await rig.settle()
        assert accepted() == "KeyInUse"
        going = {"metadata": {"deletionTimestamp": "2026-01-03T00:00:00Z", "finalizers": ["example.com/hold"]}}
        await rig.fake.patch(TENANTS.path("team", "older"), going)
        await rig.settle()
        assert accepted() == "Valid"

    asyncio.run(main())
