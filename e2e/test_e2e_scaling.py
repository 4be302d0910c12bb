"""The autoscaler on a real cluster: load in two steps and back, without Prometheus, with one, and while it dies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from rig import samples
from rig.chat import Answer, chat, question
from rig.kube import condition, wait_until
from rig.load import Load, Offer
from rig.prometheus import Prometheus, prometheus
from rig.stage import MODEL, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]  # seconds; about 150 on an idle machine
BASE, LOW, HIGH = 2, 1, 4  # callers, one beside the other; a replica has two slots
TOKENS = 160  # of every answer, so that who waits for a slot waits well above the objective however fast the machine is
UP, DOWN = 300.0, 300.0  # seconds for one step


@pytest.fixture(scope="module", autouse=True)
def brisk(stage: Stage) -> None:
    """An objective under which a request that waits for a third of a second asks for a replica."""
    classes = [{**c, "maxQueueAge": "300ms"} if c["name"] == "interactive" else c for c in samples.GENEROUS]
    stage.kube.apply({**samples.slo("brisk"), "spec": {"classes": classes}}, namespace=stage.team)


@pytest.fixture
def scraping(stage: Stage) -> Iterator[Prometheus]:
    """Debian's Prometheus. At the end the operator is again one that has none."""
    if stage.world.netns is None:
        pytest.skip("Prometheus runs beside the embedded cluster; the pods of a user's cluster could not reach it")
    with prometheus(stage.world, [stage.release, stage.team]) as running:
        yield running
    stage.install()


def tide(low: int) -> dict[str, Any]:
    return {"serviceLevelRef": {"name": "brisk"}, "scaling": samples.scaled(low, 3, zero="20s")}


@contextmanager
def offered(stage: Stage, name: str, callers: int) -> Iterator[Load]:
    """Load while the context is open; all its answers are there afterwards."""
    fields = {"ignore_eos": True}
    offer = Offer(name, callers=callers, seconds=900, max_tokens=TOKENS, seed=callers, fields=fields)
    load = Load(stage.endpoint, offer).start()
    try:
        yield load
    finally:
        load.stop()


def reach(stage: Stage, name: str, replicas: int) -> None:
    wait_until(f"{replicas} replicas are ready", lambda: stage.ready_replicas(name) == replicas, within=UP)


def come_down(stage: Stage, name: str, step: tuple[int, int]) -> None:
    wait_until(f"{step[0]} -> {step[1]} is decided", lambda: step in stage.decisions(name), within=DOWN)
    wait_until(f"{step[1]} pods are left", lambda: len(stage.pods(name)) == step[1], within=DOWN)


def lost(answers: Sequence[Answer]) -> list[Answer]:
    assert len(answers) > BASE + LOW
    return [answer for answer in answers if not answer.explained]


def every_decision_is_told(stage: Stage, name: str) -> None:
    """In an Event with its numbers, and by `headrace explain`, which also names the candidates."""
    made, explained = stage.decisions(name), stage.explain(name)
    sentences = [f"{before} → {after} replicas" for before, after in made]

    def noted() -> bool:
        notes = [note for reason, note in stage.events(name) if reason in ("ScaledUp", "ScaledDown")]
        return all(any(note.startswith(sentence) for note in notes) for sentence in sentences)

    wait_until("every decision is an Event", noted, within=30)
    assert all(sentence in explained for sentence in sentences), explained
    assert re.search(r"1 → 2 replicas, QueueAge", explained), explained
    assert "waiting too long: interactive" in explained
    assert "queueAge" in explained


def replays_identically(stage: Stage, name: str) -> None:
    said = stage.replay(stage.recording(name))
    assert "they are identical on replay" in said
    assert int(said.split()[0]) > 10, said


def test_two_steps_and_back_then_zero_then_from_zero(stage: Stage) -> None:
    """No Prometheus anywhere."""
    with stage.model("tide", **tide(0)):
        with offered(stage, "tide", BASE) as base:
            with offered(stage, "tide", LOW) as low:
                reach(stage, "tide", 2)
                with offered(stage, "tide", HIGH) as high:
                    reach(stage, "tide", 3)
                replays_identically(stage, "tide")
            come_down(stage, "tide", (3, 2))
        assert lost([*base.answers, *low.answers, *high.answers]) == []
        every_decision_is_told(stage, "tide")
        wait_until("nothing runs when nothing is asked", lambda: not stage.pods("tide"), within=DOWN)
        replays_identically(stage, "tide")
        assert stage.ready("tide")
        for _ in range(2):  # the second cold request counts as much as the first
            answer = chat(stage.endpoint, question("tide", "What is TTFT?", max_tokens=32), timeout=240)
            assert answer.ok, answer
            wait_until("it sleeps again", lambda: not stage.pods("tide"), within=DOWN)
        assert stage.decisions("tide").count((0, 1)) >= 2
        assert stage.decisions("tide")[-1][1] == 0


def test_prometheus_killed_in_a_surge_changes_nothing(stage: Stage, scraping: Prometheus) -> None:
    def attainment() -> str:
        return str(condition(stage.kube.get(MODEL, "surge", stage.team), "ServiceLevelMet").get("message", ""))

    with stage.model("surge", **tide(1)):
        with offered(stage, "surge", BASE) as base:
            with offered(stage, "surge", LOW) as low:
                counted = 'sum(headrace_requests_total{model="surge"})'
                wait_until("the gateway is scraped", lambda: scraping.ask(counted), within=60)
                wait_until("engines are scraped", lambda: scraping.ask('up{pod=~"surge-.*"} == 1'), within=30)
                stage.install(prometheusUrl=scraping.url)
                wait_until("history is read", lambda: re.search(r"over 1h: .*% good", attainment()), within=150)
                reach(stage, "surge", 2)
                with offered(stage, "surge", HIGH) as high:
                    wait_until("the surge has begun", lambda: high.answers, within=60)
                    scraping.kill()
                    reach(stage, "surge", 3)
            come_down(stage, "surge", (3, 2))
        assert scraping.ask("up") == []
        assert lost([*base.answers, *low.answers, *high.answers]) == []
        every_decision_is_told(stage, "surge")
        replays_identically(stage, "surge")
        active = condition(stage.kube.get(MODEL, "surge", stage.team), "ScalingActive")
        assert (active["status"], active["reason"]) == ("True", "Active")
