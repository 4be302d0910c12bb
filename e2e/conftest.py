"""One cluster and one installation for all end-to-end tests of a run, gone at its end unless HEADRACE_KEEP is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rig import samples
from rig.chat import Endpoint
from rig.install import new_key
from rig.stage import INSTANCE, RELEASE, TEAM, Stage
from rig.world import close_world, open_world

BOUND = 600  # seconds for a test, without its fixtures: the first one may build images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test of this folder that has no bound of its own."""
    for item in items:
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BOUND, func_only=True))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Headrace, installed on the cluster of KUBECONFIG or on the embedded one of the tests."""
    world = open_world(INSTANCE)
    try:
        key = new_key("e2e")
        made = Stage(world, RELEASE, TEAM, Endpoint("", key.secret), key)
        made.install()
        world.kube.apply(samples.slo(), namespace=TEAM)
        with world.gateway(RELEASE) as url:
            yield replace(made, endpoint=Endpoint(url, key.secret))
    finally:
        if not os.environ.get("HEADRACE_KEEP"):
            close_world(INSTANCE, [RELEASE], [TEAM])
