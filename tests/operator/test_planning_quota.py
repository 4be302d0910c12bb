"""What a pod counts for, and what quotas leave."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.planning.pods import Problem, report
from headrace.planning.quota import pod_cost, quota_room, scarce


def container(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"resources": {k: v for k, v in (("requests", requests), ("limits", limits)) if v}}


POD = {
    "nothing given": ([{}], [], {"pods": 1}),
    "a limit is a request, too": (
        [container(limits={"nvidia.com/gpu": "1"})], [],
        {"pods": 1, "requests.nvidia.com/gpu": 1, "limits.nvidia.com/gpu": 1},
    ),
    "requests go before limits": (
        [container({"cpu": "500m"}, {"cpu": "2"})], [], {"pods": 1, "requests.cpu": "0.5", "limits.cpu": 2},
    ),
    "containers are added": (
        [container({"memory": "1Gi"}), container({"memory": "512Mi"})], [],
        {"pods": 1, "requests.memory": 3 * 2**29},
    ),
    "an init container counts where it is the larger": (
        [container({"cpu": "1", "memory": "4Gi"})], [container({"cpu": "2", "memory": "1Gi"})],
        {"pods": 1, "requests.cpu": 2, "requests.memory": 2**32},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("containers", "init", "expected"), POD.values(), ids=POD)
def test_pod_cost(containers: list[Any], init: list[Any], expected: dict[str, Any]) -> None:
    cost = pod_cost({"spec": {"containers": containers, "initContainers": init}})
    assert cost == {name: Decimal(amount) for name, amount in expected.items()}


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}


QUOTAS = {
    "none": ([], {}),
    "its names are ours": (
        [
            quota(
                {"cpu": "4", "requests.memory": "8Gi", "count/pods": "9"},
                {"cpu": "1500m", "requests.memory": "0", "count/pods": "2"},
            )
        ],
        {"requests.cpu": ("4", "1.5"), "requests.memory": (8 * 2**30, 0), "pods": (9, 2)},
    ),
    "the narrower of two": (
        [quota({"pods": "9"}, {"pods": "2"}), quota({"pods": "5"}, {"pods": "2"})], {"pods": (5, 2)},
    ),
    "not yet counted": ([quota({"pods": "9"}, {})], {}),
    "unreadable": ([quota({"pods": "many", "cpu": "2"}, {"pods": "1", "cpu": "1"})], {"requests.cpu": (2, 1)}),
    "of another scope": ([quota({"pods": "1"}, {"pods": "1"}, scopes=["BestEffort"])], {}),
    "of a scope that holds": ([quota({"pods": "1"}, {"pods": "1"}, scopes=["NotTerminating"])], {"pods": (1, 1)}),
    "of a selector": ([quota({"pods": "1"}, {"pods": "1"}, scopeSelector={"matchExpressions": [{}]})], {}),
}  # fmt: skip


@pytest.mark.parametrize(("quotas", "expected"), QUOTAS.values(), ids=QUOTAS)
def test_quota_room(quotas: list[Any], expected: dict[str, tuple[Any, Any]]) -> None:
    assert quota_room(quotas) == {name: (Decimal(h), Decimal(u)) for name, (h, u) in expected.items()}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", {"requests.nvidia.com/gpu"}, id="GPU"),
        pytest.param(
            "0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient memory. preemption: 0/2 nodes are available",
            {"requests.cpu", "requests.memory"}, id="two",
        ),
        pytest.param("0/1 nodes are available: 1 node(s) had untolerated taint {x: y}.", set(), id="no resource"),
    ],
)  # fmt: skip
def test_what_waiting_pods_lack(message: str, expected: set[str]) -> None:
    unschedulable = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    pods = report([{"metadata": {"name": "p"}, "status": {"conditions": unschedulable}}], "")
    assert isinstance(pods.problems[0], Problem)
    assert scarce(pods) == expected
