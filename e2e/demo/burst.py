"""The burst: more than one replica holds, watched until the autoscaler has answered and returned."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from demo.story import Story
from demo.talk import MODEL, DemoFailed
from rig.bounded import cpu_group, start_in
from rig.chat import Endpoint
from rig.install import ROOT, headrace
from rig.kube import Kube, WaitFailed
from rig.world import World

CALLERS = 10
SECONDS = 75
UP_WITHIN = 150.0  # seconds
DOWN_WITHIN = 240.0
LOAD_CPUS = 0.5


def offer(story: Story, world: World, namespace: str, endpoint: Endpoint) -> None:
    """Offer load, tell what queue age, goodput and replicas do, and wait until the second replica is gone again."""
    command = [
        *world.inside, sys.executable, "-m", "rig.load", "--url", endpoint.url, "--model", MODEL,
        "--callers", str(CALLERS), "--seconds", str(SECONDS),
    ]  # fmt: skip
    environment = {**world.kube.environment(), "PYTHONPATH": str(ROOT / "e2e"), "HEADRACE_KEY": endpoint.key or ""}
    with cpu_group("headrace-demo-load", LOAD_CPUS) as group:
        load = start_in(group, command, environment)
        try:
            _watch(story, world.kube, namespace, 2, UP_WITHIN)
            story.command(f"headrace explain model {MODEL} -n {namespace}")
            story.result(explain(world.kube, namespace))
            printed, problems = load.communicate(timeout=SECONDS + 200)
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
    if load.returncode:
        raise DemoFailed(f"the load generator failed: {problems.strip()[-500:]}")
    _tell_load(story, json.loads(printed))
    story.line("   the burst is over; one replica must suffice for downAfter (20 s) before the second one goes")
    _watch(story, world.kube, namespace, 1, DOWN_WITHIN)


def explain(kube: Kube, namespace: str) -> str:
    """What `headrace explain` says of the model."""
    done = subprocess.run(
        [headrace(), "explain", "model", MODEL, "-n", namespace],
        capture_output=True,
        text=True,
        env=kube.environment(),
        check=False,
    )
    if done.returncode:
        raise DemoFailed(f"headrace explain failed: {done.stderr.strip()}")
    return done.stdout


def _tell_load(story: Story, told: dict[str, Any]) -> None:
    lost = {k: n for k, n in told["outcomes"].items() if k != "ok"}
    story.line(
        f"   offered {told['requests']} requests, {told['outcomes'].get('ok', 0)} answered"
        f"{', refused or ended with a reason: ' + str(lost) if lost else ', none lost'}; "
        f"TTFT p50 {told['ttft_p50_s']} s, p95 {told['ttft_p95_s']} s"
    )


def _watch(story: Story, kube: Kube, namespace: str, replicas: int, within: float) -> None:
    deadline = time.monotonic() + within
    last = ""
    while time.monotonic() < deadline:
        model = kube.get("model.headrace.dev", MODEL, namespace)
        line = _figures(model.get("status", {}))
        if line != last:
            story.line(f"   {line}")
            last = line
        if model["status"].get("readyReplicas") == replicas and model["status"].get("replicas") == replicas:
            return
        time.sleep(2)
    raise WaitFailed(f"the model did not come to {replicas} ready replicas within {within:.0f} s; last: {last}")


def _figures(status: dict[str, Any]) -> str:
    levels = [
        f"{level['name']}: queue age {level.get('queueAge', 'unknown')}, goodput {level.get('goodputPercent', '?')} %"
        for level in status.get("serviceLevel", [])
    ]
    desired = status.get("scaling", {}).get("desired", "?")
    return f"replicas {status.get('readyReplicas', 0)} ready / {desired} desired; " + "; ".join(levels)
