"""Bounds that hold for a time: when a window is open, what a decision says of it, and that it ends by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.model import Model, Scaling
from headrace.api.schedule import DAYS, Bounds, Override, Schedule, bounds_at, problems
from headrace.cli.explain_report import report
from headrace.cli.main import main
from headrace.planning.judge import References, judge
from headrace.planning.reasons import Why
from headrace.planning.replicas import target
from headrace.scaling import Memory, Policy, Reason
from headrace.scaling.record import Recorder, replay
from headrace.scaling.types import Ordered
from headrace.testing.scaling_world import KEY, T0, Gauge, World, answer, policy, ready

OWN = Bounds(1, 4)


def schedule(name: str = "office", start: str = "08:00", end: str = "18:00", **more: Any) -> Schedule:
    return Schedule.model_validate({"name": name, "start": start, "end": end, "minReplicas": 2, **more})


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


WORK = {"days": ["Mon", "Tue", "Wed", "Thu", "Fri"], "timeZone": "Europe/Berlin"}
NIGHT = {"start": "22:00", "end": "06:00", "days": ["Fri"]}


@pytest.mark.parametrize(
    ("made", "moment", "expected"),
    [
        pytest.param(schedule(), "2027-01-15T07:59:59", False, id="a second before it opens"),
        pytest.param(schedule(), "2027-01-15T08:00:00", True, id="when it opens"),
        pytest.param(schedule(), "2027-01-15T17:59:59", True, id="its last second"),
        pytest.param(schedule(), "2027-01-15T18:00:00", False, id="when it closes"),
        pytest.param(schedule(**WORK), "2027-01-15T07:00:00", True, id="Berlin is an hour ahead in winter"),
        pytest.param(schedule(**WORK), "2027-07-16T06:00:00", True, id="and two in summer"),
        pytest.param(schedule(**WORK), "2027-07-16T05:59:59", False, id="not earlier in summer"),
        pytest.param(schedule(**WORK), "2027-01-16T12:00:00", False, id="closed on Saturdays"),
        pytest.param(schedule(**NIGHT), "2027-01-15T23:00:00", True, id="Friday night"),
        pytest.param(schedule(**NIGHT), "2027-01-16T05:59:00", True, id="the night goes on on Saturday"),
        pytest.param(schedule(**NIGHT), "2027-01-16T06:00:00", False, id="the night is over"),
        pytest.param(schedule(**NIGHT), "2027-01-15T05:00:00", False, id="Thursday night was none"),
        pytest.param(schedule(start="00:00", end="00:00"), "2027-01-15T13:00:00", True, id="the whole day"),
        pytest.param(schedule(timeZone="Mars/Olympus"), "2027-01-15T12:00:00", False, id="unknown zone never opens"),
    ],
)
def test_window(made: Schedule, moment: str, expected: bool) -> None:
    assert made.open(at(moment)) is expected


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param("2027-03-28T01:59:00", True, id="before the hour that is left out"),
        pytest.param("2027-03-28T03:30:00", False, id="after it"),
        pytest.param("2027-10-31T02:15:00", True, id="in the hour that comes twice"),
    ],
)
def test_window_across_the_change_of_clocks_follows_the_wall(moment: str, expected: bool) -> None:
    made = schedule(start="01:00", end="02:30", timeZone="Europe/Berlin")
    first = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert made.open(first.timestamp()) is expected
    assert made.open(first.replace(fold=1).timestamp()) is expected


HIGH = schedule("high", minReplicas=3, maxReplicas=9)
LOW = schedule("low", minReplicas=0, maxReplicas=2)
FORCED = Override(replicas=7, until="2027-01-15T12:00:00Z")
NOON = at("2027-01-15T12:00:00")


@pytest.mark.parametrize(
    ("schedules", "override", "moment", "expected"),
    [
        pytest.param([], None, NOON, (1, 4, ""), id="nothing"),
        pytest.param([HIGH], None, NOON, (3, 9, "schedule"), id="both bounds are its own"),
        pytest.param([LOW], None, NOON, (0, 2, "schedule"), id="lower bounds, too"),
        pytest.param([schedule()], None, NOON, (2, 4, "schedule"), id="the bound that it lacks is the spec's"),
        pytest.param([LOW, HIGH], None, NOON, (3, 9, "schedule"), id="two: the largest of each"),
        pytest.param([HIGH], None, NOON + 8 * 3600, (1, 4, ""), id="closed"),
        pytest.param([HIGH], FORCED, NOON - 1, (7, 7, "override"), id="the hand goes before the calendar"),
        pytest.param([HIGH], FORCED, NOON, (3, 9, "schedule"), id="until its end"),
        pytest.param([], Override(replicas=0, until="soon"), NOON, (1, 4, ""), id="no end that can be read: never"),
        pytest.param([], Override(replicas=0, until="2099-01-01T00:00:00"), NOON, (1, 4, ""), id="an end of no zone"),
    ],
)
def test_bounds(
    schedules: list[Schedule], override: Override | None, moment: float, expected: tuple[int, int, str]
) -> None:
    found = bounds_at(OWN, schedules, override, moment)
    assert (found.least, found.most, found.by) == expected
    assert bool(found.detail) == bool(found.by)


numbers = st.none() | st.integers(0, 9)
clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
made_schedules = st.lists(
    st.builds(
        lambda start, end, days, least, most: Schedule(
            name="s", start=start, end=end, days=days, min_replicas=least, max_replicas=most
        ),
        clocks, clocks, st.lists(st.sampled_from(DAYS), unique=True), numbers, numbers,
    ),
    max_size=4,
)  # fmt: skip


@given(schedules=made_schedules, minutes=st.integers(0, 7 * 24 * 60 - 1))
def test_bounds_never_cross_and_a_week_later_they_are_the_same(schedules: list[Schedule], minutes: int) -> None:
    moment = at("2027-01-11T00:00:00") + 60 * minutes
    found = bounds_at(OWN, schedules, None, moment)
    assert found.least <= found.most
    assert found == bounds_at(OWN, schedules, None, moment + 7 * 86_400)
    assert (found == OWN) == (not any(s.open(moment) for s in schedules)) or found.by


@given(start=clocks, end=clocks)
def test_a_window_is_open_for_as_many_minutes_as_lie_between(start: str, end: str) -> None:
    made = schedule(start=start, end=end)
    midnight = at("2027-01-13T00:00:00")
    length = (_minutes(end) - _minutes(start)) % 1440 or 1440
    assert sum(made.open(midnight + 60 * m) for m in range(1440)) == length


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


# What decisions say


def ordered(least: int, most: int, by: str = "schedule", own: tuple[int, int] = (0, 8)) -> Policy:
    who = Ordered(by=by, detail=f"{by} x", min_replicas=own[0], max_replicas=own[1])
    return policy(min_replicas=least, max_replicas=most, ordered=who)


WAITS = Gauge(queued=10, age=1.5, in_flight=4)
BOUND = {
    "a schedule wakes": (ordered(3, 8), Gauge(), 0, (3, Reason.SCHEDULE), ("0 → 3", "without it 0 (Steady)")),
    "no step is too long for a schedule": (
        ordered(6, 8), WAITS, 2, (6, Reason.SCHEDULE), ("4 → 6", "without it 4 (QueueAge)"),
    ),
    "a schedule keeps small": (ordered(0, 3), WAITS, 2, (3, Reason.SCHEDULE), ("4 → 3", "without it 4 (QueueAge)")),
    "an override stops": (
        ordered(1, 1, "override"), WAITS, 2, (1, Reason.OVERRIDE), ("4 → 1", "without it 4 (QueueAge)"),
    ),
    "an override to zero": (ordered(0, 0, "override"), WAITS, 2, (0, Reason.OVERRIDE), ("4 → 0", "without it 4")),
    "beyond the spec's own most": (
        ordered(12, 12, "override"), Gauge(), 8, (12, Reason.OVERRIDE), ("7 → 12", "without it 7 (Underused)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", BOUND.values(), ids=BOUND)
def test_decision_names_who_bound_it_and_what_it_would_have_been(
    row: tuple[Policy, Gauge, int, tuple[int, Reason], tuple[str, str]],
) -> None:
    rules, gauge, current, expected, (effect, without) = row
    on = World(rules, engines=current)
    on.run(25, gauge)
    decision = on.decide(ready(current))
    assert answer(decision) == expected
    guard = decision.guards[-1]
    assert (guard.name, guard.effect) == (rules.ordered and rules.ordered.by, effect)
    assert without in guard.detail and f"{guard.name} x" in decision.message


def test_bounds_that_change_nothing_are_not_told_of() -> None:
    on = World(ordered(1, 8))
    on.run(5, WAITS)
    decision, plain = on.decide(ready(2)), World(policy()).run(5, WAITS).decide(ready(2))
    assert (decision.replicas, decision.reason, decision.guards) == (plain.replicas, plain.reason, plain.guards)


def test_after_a_window_replicas_go_one_by_one() -> None:
    """What a schedule kept ready is not dropped at once: the rule for one fewer decides as ever."""
    on = World(policy(min_replicas=1), engines=6)
    on.run(40, Gauge(in_flight=1))
    assert answer(on.decide(ready(6))) == (5, Reason.UNDERUSED)


@given(
    least=st.integers(0, 6), extra=st.integers(0, 6), current=st.integers(0, 8),
    queued=st.integers(0, 40), by=st.sampled_from(["schedule", "override"]),
)  # fmt: skip
def test_ordered_decisions_keep_their_bounds_and_replay(
    least: int, extra: int, current: int, queued: int, by: str
) -> None:
    on = World(ordered(least, least + extra, by), engines=current)
    lines: list[str] = []
    recorder = Recorder(lines.append)
    recorder.window(KEY, on.policy, on.window)
    on.now += 1
    on.see(Gauge(queued=queued, age=2.0 if queued else None, in_flight=current))
    assert on.window.latest is not None
    recorder.sample(KEY, on.window.latest)
    replicas = ready(current)
    decision = on.decide(replicas)
    assert least <= decision.replicas <= least + extra
    recorder.decision(KEY, on.policy, replicas, Memory(), decision)
    assert replay(lines).differences == ()


# The spec's way to there


def model(**scaling: Any) -> Model:
    spec = {"source": {"uri": "builtin://demo"}, "scaling": {"mode": "Auto", "maxReplicas": 4, **scaling}}
    return Model.model_validate({"metadata": {"name": "m"}, "spec": spec, "status": {"observedGeneration": 1}})


OFFICE = {"name": "office", "start": "08:00", "end": "18:00", "minReplicas": 3, "maxReplicas": 6}


def test_policy_of_a_time() -> None:
    given_model = model(schedules=[OFFICE])
    assert Policy.of(given_model, None) == Policy.of(given_model, None, NOON + 8 * 3600)
    noon = Policy.of(given_model, None, NOON)
    assert (noon.min_replicas, noon.max_replicas) == (3, 6)
    assert noon.plain() == Policy.of(given_model, None)
    assert noon.ordered is not None and "schedule office (daily 08:00 to 18:00 UTC)" in noon.bounds


@pytest.mark.parametrize(
    ("decision", "observed", "moment", "expected"),
    [
        pytest.param(None, None, NOON, 3, id="created within a window"),
        pytest.param(1, None, NOON, 3, id="made anew within a window"),
        pytest.param(9, None, NOON, 6, id="no more than its most"),
        pytest.param(6, None, NOON + 8 * 3600, 4, id="after it the spec's own"),
        pytest.param(None, 1, NOON, 1, id="restarted within a window: until it is decided"),
        pytest.param(None, None, None, 1, id="of no time"),
    ],
)
def test_target_of_a_time(decision: int | None, observed: int | None, moment: float | None, expected: int) -> None:
    assert target(model(schedules=[OFFICE]).spec, decision, observed, moment) == expected


@pytest.mark.parametrize(
    ("scaling", "path"),
    [
        pytest.param(
            {"schedules": [{**OFFICE, "timeZone": "Mars/X"}]}, "spec.scaling.schedules[0].timeZone: 'Mars/X'", id="zone"
        ),
        pytest.param(
            {"schedules": [OFFICE, {**OFFICE, "name": "b", "timeZone": "America"}]},
            "spec.scaling.schedules[1].timeZone: 'America'", id="a folder of zones",
        ),
        pytest.param(
            {"override": {"replicas": 1, "until": "tomorrow"}}, "spec.scaling.override.until: 'tomorrow'", id="end"
        ),
    ],
)  # fmt: skip
def test_what_no_schema_checks_is_refused_with_its_field(scaling: dict[str, Any], path: str) -> None:
    found = judge(model(**scaling), References(), None).refusal
    assert found is not None and found.reason == Why.INVALID_SPEC.value
    assert found.message.startswith(path)


def test_plan_names_the_file_and_the_field_of_a_time_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling = {"mode": "Auto", "maxReplicas": 4, "schedules": [{**OFFICE, "timeZone": "Mars/X"}]}
    whole = {
        "apiVersion": "headrace.dev/v1alpha1", "kind": "Model", "metadata": {"name": "m"},
        "spec": {"source": {"uri": "builtin://demo"}, "scaling": scaling},
    }  # fmt: skip
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(whole))
    assert main(["plan", "-f", str(tmp_path / "model.yaml")]) == 2
    told = capsys.readouterr().err
    assert "model.yaml" in told
    assert "spec.scaling.schedules[0].timeZone: 'Mars/X' is no time zone" in told


def test_sound_times_are_no_problem() -> None:
    scaling = model(schedules=[{**OFFICE, **WORK}], override={"replicas": 1, "until": "2027-01-01T00:00:00+01:00"})
    assert list(problems(scaling.spec.scaling.schedules, scaling.spec.scaling.override)) == []


def test_explain_tells_the_bounds_of_the_present_and_the_calendar() -> None:
    until = (datetime.fromtimestamp(NOON, UTC) + timedelta(hours=1)).isoformat()
    given_model = model(schedules=[OFFICE], override={"replicas": 2, "until": until})
    text = report(given_model, None, NOON)
    assert f"between 2 and 2 by override to 2 until {until}" in text
    assert "schedule office (daily 08:00 to 18:00 UTC): at least 3, at most 6" in text
    assert f"never, minReplicas of override to 2 until {until} is 2" in text
    later = report(given_model, None, NOON + 3600)
    assert "between 3 and 6 by schedule office" in later
    assert f"override to 2 until {until}: over" in later
    assert "between 1 and 4\n" in report(given_model, None, NOON + 12 * 3600)


def test_specs_of_before_have_the_bounds_of_before() -> None:
    scaling = Scaling.model_validate({"mode": "Auto", "minReplicas": 2, "maxReplicas": 5})
    assert scaling.bounds(T0) == Bounds(2, 5)
