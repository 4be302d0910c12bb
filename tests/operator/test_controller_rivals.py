"""A HorizontalPodAutoscaler on a Model's Deployment: named, left alone, known by its manager where it is not found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.apionly import ApiServer
from headrace.cluster.client import Client, Object
from headrace.cluster.errors import ApiError, Unreachable
from headrace.cluster.resources import DEPLOYMENTS, EVENTS, HPAS, MODELS
from headrace.controller.rivals import KUBERNETES, Rivals
from headrace.testing.running import bench, running, settings_for


class FakeLists(Client):
    """Answers a LIST with these objects, or fails."""

    def __init__(self, items: list[Object] | Exception):
        self._items = items
        self.asked: list[tuple[Any, ...]] = []

    async def list(self, *arguments: Any) -> tuple[list[Object], str]:
        self.asked.append(arguments)
        if isinstance(self._items, Exception):
            raise self._items
        return self._items, "1"


def autoscaler(name: str, target: str, kind: str = "Deployment") -> Object:
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": {"kind": kind, "name": target}}}


PLAIN = f"field manager {KUBERNETES!r}"


@pytest.mark.parametrize(
    ("manager", "listed", "expected"),
    [
        pytest.param(None, [], "", id="nobody else"),
        pytest.param("kubectl", [autoscaler("x", "demo")], "field manager 'kubectl'", id="no autoscaler writes so"),
        pytest.param(
            KUBERNETES, [autoscaler("x", "demo")], f"HorizontalPodAutoscaler 'x' ({PLAIN})", id="one of this Deployment"
        ),
        pytest.param(
            KUBERNETES,
            [autoscaler("z", "demo"), autoscaler("a", "demo"), autoscaler("b", "other")],
            f"HorizontalPodAutoscaler 'a', 'z' ({PLAIN})",
            id="two of this Deployment and one of another",
        ),
        pytest.param(KUBERNETES, [autoscaler("x", "demo", "StatefulSet")], PLAIN, id="another kind of that name"),
        pytest.param(KUBERNETES, [{"metadata": {"name": "x"}}], PLAIN, id="one without a target"),
        pytest.param(KUBERNETES, ApiError(403, {"message": "no right"}), PLAIN, id="not allowed to look"),
        pytest.param(KUBERNETES, Unreachable("gone"), PLAIN, id="API server away"),
    ],
)
def test_words(manager: str | None, listed: list[Object] | Exception, expected: str) -> None:
    client = FakeLists(listed)
    assert asyncio.run(Rivals(client).words(("team", "demo"), manager)) == expected
    assert client.asked == ([(HPAS, "team")] if manager == KUBERNETES else [])


def test_autoscaler_on_the_deployment_is_named_in_the_condition_and_in_an_event(
    apiserver: ApiServer, namespace: str
) -> None:
    """One of two targets this Deployment; both would write under the name of the program that they run in."""

    async def main() -> None:
        config = str(apiserver.kubeconfig)
        async with bench(config, namespace) as on, running(settings_for(config, namespace)):
            await on.model(scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": 4})
            await on.until("a Deployment", lambda: on.get(DEPLOYMENTS))
            for name, target in (("theirs", "demo"), ("elsewhere", "other")):
                reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
                await on.create(HPAS, name, {"spec": {"scaleTargetRef": reference, "maxReplicas": 9}})
            path = DEPLOYMENTS.path(namespace, "demo", "scale")
            await on.client.patch(path, {"spec": {"replicas": 3}}, params={"fieldManager": KUBERNETES})
            named = f"HorizontalPodAutoscaler 'theirs' ({PLAIN})"
            told = await on.condition(MODELS, "demo", "ScalingActive", "False", "Conflict")
            assert told["message"].startswith(f"{named} owns .spec.replicas of Deployment demo")

            async def noted() -> bool:
                items, _ = await on.client.list(EVENTS, namespace)
                return any(e["reason"] == "Conflict" and e["note"].startswith(named) for e in items)

            await on.until("an Event", noted)
            assert ((await on.get(DEPLOYMENTS)) or {})["spec"]["replicas"] == 3

    asyncio.run(main())
