"""The burst: more than one replica holds, watched until the autoscaler has answered and returned."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from demo.story import Story
from demo.talk import MODEL, DemoFailed
from rig.bounded import cpu_group, start_in
from rig.chat import Endpoint
from rig.install import ROOT, headrace
from rig.kube import CommandFailed, Kube, WaitFailed
from rig.world import World

CALLERS = 10  # at the beginning
WAIT_S = 1.6  # that a request waits in the end, whatever the machine: above maxQueueAge of the sample, below its ttft
SECONDS = 75
UP_WITHIN = 150.0  # seconds
DOWN_WITHIN = 360.0
TOLD_EVERY = 15.0  # seconds: the longest silence while nothing changes
POLL = 2.0  # seconds
LOAD_CPUS = 0.5
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OVER = """\
   the burst is over; the second replica goes once one is judged enough: by the forecast, which holds the recent
   peak for some minutes (another way to forecast, which may hold it for less, can be chosen once there are 200 s of
   history), or, where it knows too little yet, after downAfter (20 s)"""

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where Headrace runs, and its Model."""

    release: str  # namespace of operator and gateway
    namespace: str  # of the Model


def offer(story: Story, world: World, place: Place, endpoint: Endpoint) -> None:
    """Offer load, tell what queue age, goodput and replicas do, and wait until the second replica is gone again."""
    namespace = place.namespace
    watch = Watch(story, lambda: dict(world.kube.get("model.headrace.dev", MODEL, namespace).get("status", {})))
    command = [
        *world.inside, sys.executable, "-m", "rig.load", "--url", endpoint.url, "--model", MODEL,
        "--callers", str(CALLERS), "--wait", str(WAIT_S), "--seconds", str(SECONDS),
    ]  # fmt: skip
    environment = {**world.kube.environment(), "PYTHONPATH": str(ROOT / "e2e"), "HEADRACE_KEY": endpoint.key or ""}
    with cpu_group("headrace-demo-load", LOAD_CPUS) as group:
        load = start_in(group, command, environment)
        try:
            watch.until(2, UP_WITHIN)
            story.command(f"headrace explain model {MODEL} -n {namespace}")
            story.result(explain(world.kube, namespace))
            printed, problems = watch.beside(lambda seconds: load.communicate(timeout=seconds), SECONDS + 200)
        finally:
            if load.poll() is None:
                load.kill()
                load.wait()
    if load.returncode:
        raise DemoFailed(f"the load generator failed: {problems.strip()[-500:]}")
    _tell_load(story, json.loads(printed))
    story.line(OVER)
    watch.until(1, DOWN_WITHIN, lambda: why_not_fewer(recording(world.kube, place)))


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


@dataclass(frozen=True)
class Watch:
    """Tells what the Model's status says until it is as awaited."""

    story: Story
    status: Callable[[], dict[str, Any]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until(self, replicas: int, within: float, why: Callable[[], str] | None = None) -> None:
        """So many are ready; `why` says what is waited for. Raises WaitFailed after `within` seconds.

        A reason is told whole when its words are new, numbers apart; else a line says that nothing has changed.
        """
        began = told = self.clock()
        last = words = ""
        while (now := self.clock()) < began + within:
            status = self.status()
            line = _figures(status)
            if line != last:
                self.story.line(f"   {line}")
                last, told = line, now
            if status.get("readyReplicas") == replicas and status.get("replicas") == replicas:
                return
            if now - told >= TOLD_EVERY - POLL:
                reason = why() if why is not None else ""
                same = NUMBER.sub("#", reason) == words
                self.story.line(f"   after {now - began:.0f} s: {'still so' if same else reason}")
                words, told = NUMBER.sub("#", reason), now
            self.sleep(POLL)
        raise WaitFailed(f"the model did not come to {replicas} ready replicas within {within:.0f} s; last: {last}")

    def beside(self, finish: Callable[[float], T], within: float) -> T:
        """What `finish` returns; it is given so many seconds and raises TimeoutExpired, and is called again.

        Raises DemoFailed after `within` seconds.
        """
        began = self.clock()
        while True:
            try:
                return finish(TOLD_EVERY - POLL)
            except subprocess.TimeoutExpired as error:
                spent = self.clock() - began
                if spent >= within:
                    raise DemoFailed(f"the load generator did not end within {within:.0f} s") from error
                self.story.line(f"   {spent:.0f} s later, still under load: {_figures(self.status())}")


def recording(kube: Kube, place: Place) -> str:
    """The leader's last decisions, as JSON lines; empty where this user may not ask it."""
    try:
        lease = kube.get("lease", "headrace-operator", place.release)
        pod = f"/api/v1/namespaces/{place.release}/pods/{lease['spec']['holderIdentity']}:8081/proxy"
        return kube.run("get", "--raw", f"{pod}/debug/decisions?model={place.namespace}/{MODEL}")
    except (CommandFailed, KeyError):
        return ""


def why_not_fewer(recorded: str) -> str:
    """What the newest decision of a recording says of one replica fewer."""
    entries = map(json.loads, reversed(recorded.splitlines()))
    newest = next((entry["decision"] for entry in entries if entry["kind"] == "decision"), None)
    if newest is None:
        return "not fewer yet"
    down = next(candidate for candidate in newest["candidates"] if candidate["name"] == "down")
    if down.get("replicas") is None:
        return f"one replica is not judged enough yet: {down['detail']}"
    guards = "; ".join(f"{guard['name']} {guard['effect']}, {guard['detail']}" for guard in newest["guards"])
    return f"one replica is enough: {down['detail']}" + (f"; {guards}" if guards else "")


def _figures(status: dict[str, Any]) -> str:
    levels = [
        f"{level['name']}: queue age {level.get('queueAge', 'unknown')}, goodput {level.get('goodputPercent', '?')} %"
        for level in status.get("serviceLevel", [])
    ]
    desired = status.get("scaling", {}).get("desired", "?")
    return f"replicas {status.get('readyReplicas', 0)} ready / {desired} desired; " + "; ".join(levels)
