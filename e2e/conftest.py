"""One cluster and one installation for all end-to-end tests of a run, gone at its end unless HEADRACE_KEEP is set."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rig import samples
from rig.chat import Endpoint
from rig.install import install, new_key
from rig.stage import Stage
from rig.world import close_world, open_world

RELEASE = "headrace-e2e"
TEAM = "team-e2e"
NO_HUB = "http://127.0.0.1:9"  # nobody listens there in a pod


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Headrace, installed on the cluster of KUBECONFIG or on the embedded one named `test`."""
    world = open_world("test")
    install(world.kube, RELEASE, [TEAM], world.images, {"operator": {"hubEndpoint": NO_HUB}})
    key = new_key("e2e")
    world.kube.apply(samples.slo(), namespace=TEAM)
    with world.gateway(RELEASE) as url:
        yield Stage(world.kube, RELEASE, TEAM, Endpoint(url, key.secret), key)
    if not os.environ.get("HEADRACE_KEEP"):
        close_world("test", [RELEASE], [TEAM])
