"""The other autoscalers' formulas, by numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench import profile
from headrace.bench.baselines import BASELINES, Baseline, Setting
from headrace.bench.baselines.dynamo import Dynamo
from headrace.bench.baselines.history import Maxima, Means
from headrace.bench.baselines.hpa import Hpa, Keda, limit_up, recommend
from headrace.bench.baselines.kpa import Kpa, apa, clamp
from headrace.bench.baselines.wva import Wva
from headrace.bench.fluid import Observed
from headrace.bench.trace import Floats

H100 = profile.load("h100-8b")


def _one(value: float) -> Floats:
    return np.array([value])


def _setting() -> Setting:
    return Setting(1.0, _one(100.0), _one(0.8), 400_000.0, 0.007, _one(0.04), _one(1.0), H100)


def _seen(now: float, **values: float) -> Observed:
    given = {"current": 4.0, "ready": 4.0, "in_flight": 0.0, "queued": 0.0, "oldest_s": 0.0, "rho": 0.0} | values
    arrays = {name: _one(given[name]) for name in ("current", "ready", "in_flight", "queued", "oldest_s", "rho")}
    work = given.get("work", 0.0)
    return Observed(
        now=now, dt=1.0, **arrays, queued_tokens=arrays["queued"] * 1000, served=_one(0.0), shed=_one(0.0),
        count=0.0, work=work, prompt=0.0, output=0.0, mean_prompt=1000.0, mean_output=200.0,
    )  # fmt: skip


def _rule(kind: type[Baseline], **parameters: float) -> Baseline:
    return kind([{**kind.defaults, **parameters}], _setting())


@pytest.mark.parametrize(
    ("current", "total", "target", "wanted"),
    [
        pytest.param(4, 400, 100, 4, id="on target"),
        pytest.param(4, 439, 100, 4, id="within ten percent above"),
        pytest.param(4, 450, 100, 5, id="above"),
        pytest.param(4, 361, 100, 4, id="within ten percent below"),
        pytest.param(4, 200, 100, 2, id="half"),
        pytest.param(4, 0, 100, 0, id="nothing"),
    ],
)
def test_hpa_formula(current: float, total: float, target: float, wanted: float) -> None:
    assert recommend(_one(current), _one(total), _one(target)).tolist() == [wanted]


def test_hpa_goes_up_by_double_or_four() -> None:
    assert limit_up(_one(2), _one(50)).tolist() == [6]
    assert limit_up(_one(10), _one(50)).tolist() == [20]
    assert limit_up(_one(10), _one(12)).tolist() == [12]


def test_hpa_every_15_s_and_down_by_the_maximum_of_300_s() -> None:
    rule = _rule(Hpa)
    assert rule.decide(_seen(14.0, in_flight=1000)) is None
    assert float((rule.decide(_seen(15.0, in_flight=560)) or _one(0))[0]) == 8  # 560 / 70
    answers = [
        float(found[0])
        for now in range(16, 400)
        if (found := rule.decide(_seen(float(now), current=8, ready=8, in_flight=70))) is not None
    ]
    assert answers[:19] == [8.0] * 19 and answers[19] == 1.0  # the answer of 15 s counts for 20 looks, its own included


def test_keda_counts_what_waits() -> None:
    rule = _rule(Keda)
    found = rule.decide(_seen(15.0, queued=31, in_flight=999))
    assert found is not None and found.tolist() == [7]
    assert float((_rule(Keda).decide(_seen(15.0, in_flight=999)) or _one(9))[0]) == 1  # a full engine, nothing waits


def test_kpa_clamp_and_panic() -> None:
    assert clamp(_one(0), _one(5)).tolist() == [2]
    rule = _rule(Kpa, delay=0.0)
    calm = [rule.decide(_seen(float(t), in_flight=250)) for t in range(1, 120)]
    last = calm[-2]
    assert last is not None and last.tolist() == [4]  # 250 / 70, rounded up
    burst = [rule.decide(_seen(float(t), in_flight=700)) for t in range(120, 131)]
    panicked = burst[-1] if burst[-1] is not None else burst[-2]
    assert panicked is not None and panicked.tolist() == [10]  # the mean of 6 s, not of 60
    after = [rule.decide(_seen(float(t), in_flight=0)) for t in range(131, 170)]
    assert all(a is None or a.tolist() == [10] for a in after)  # no way down in panic


def test_apa_tolerance_and_rates() -> None:
    assert [apa(_one(4), _one(r))[0] for r in (1.09, 1.2, 9.0, 0.95, 0.6, 0.01)] == [4, 5, 8, 4, 3, 2]


def test_wva_counts_pending_as_supply_upward_only() -> None:
    rule = _rule(Wva)
    capacity = 100 * 1100  # slots times the mean request's KV; below 0.8 of the pool
    flying = 4.5 * 0.85 * capacity / 1100  # demand / 0.85 is 4.5 replicas
    up = rule.decide(_seen(30.0, in_flight=flying))
    assert up is not None and up.tolist() == [5]
    pending = rule.decide(_seen(60.0, current=5, ready=4, in_flight=flying))
    assert pending is not None and pending.tolist() == [5]
    idle = rule.decide(_seen(90.0, current=5, ready=4, in_flight=10))
    assert idle is not None and idle.tolist() == [5]  # something is pending
    idle = rule.decide(_seen(120.0, current=5, ready=5, in_flight=10))
    assert idle is not None and idle.tolist() == [1]


def test_dynamo_floor_and_consolidation() -> None:
    rule = _rule(Dynamo)
    answers = [rule.decide(_seen(float(t), rho=0.7, work=3.0)) for t in range(1, 181)]
    floor = answers[-1]
    assert floor is not None and floor.tolist() == [4]  # 3.0 seconds of work a second over 0.8
    down = rule.decide(_seen(185.0, rho=0.05, current=6, ready=6))
    assert down is not None and down.tolist() == [5]
    steady = rule.decide(_seen(190.0, rho=0.05, current=6, ready=5))
    assert steady is not None and steady.tolist() == [6]  # a scaling is unfinished


def test_dynamo_keeps_what_consolidation_would_overload() -> None:
    rule = _rule(Dynamo)
    kept = rule.decide(_seen(5.0, rho=0.75, current=2, ready=2))
    assert kept is not None and kept.tolist() == [2]
    more = rule.decide(_seen(10.0, rho=0.5, current=2, ready=2, queued=100, oldest_s=0.8))
    assert more is not None and more.tolist() == [3]


def test_windows() -> None:
    means = Means(np.array([2.0, 4.0]), 1.0)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        means.add(np.array([value, value]))
    assert means.mean().tolist() == [4.5, 3.5]
    maxima = Maxima(np.array([30.0, 60.0]), 15.0)
    found = [maxima.add(np.array([v, v])).tolist() for v in (9.0, 1.0, 2.0, 3.0, 1.0)]
    assert found == [[9, 9], [9, 9], [2, 9], [3, 9], [3, 3]]


@pytest.mark.parametrize("kind", BASELINES, ids=lambda k: k.name)
def test_defaults_come_first_in_the_grid(kind: type[Baseline]) -> None:
    choices = kind.choices()
    assert choices[0] == dict(kind.defaults)
    assert all(set(choice) == set(kind.defaults) for choice in choices)
