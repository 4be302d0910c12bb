"""The core's loop over a fake link, runner and clock: messages in, Deltas and reports out, faults contained."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Literal

import pytest

from headrace_engine.core.blocks import BlockPool
from headrace_engine.core.loop import IDLE_REPORT_S, Loop
from headrace_engine.core.messages import Abort, Control, Deltas, FromCore, StateReport, Submit, ToCore
from headrace_engine.core.plan import StepPlan, StepResult
from headrace_engine.core.scheduler import Limits, Scheduler
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.fake import VOCAB, FakeRunner, fake_kv, generate
from headrace_wire.protocol import Delta, EngineState, Finish, ModelInfo, Sampling
from headrace_wire.reasons import Reason

STEP_S = 0.03


class FaultyRunner(FakeRunner):
    """Raises in the launches or collections whose turn is marked."""

    def __init__(self, lag: int, pages: int):
        super().__init__(lag, fake_kv(pages))
        self.break_launch: set[int] = set()  # step numbers
        self.break_collect: set[int] = set()

    def launch(self, plan: StepPlan) -> None:
        if plan.number in self.break_launch:
            raise RuntimeError("injected")
        super().launch(plan)

    def collect(self) -> StepResult:
        result = super().collect()
        if result.number in self.break_collect:
            raise MemoryError("injected")
        return result


class World:
    """A loop whose clock moves with each step, and both ends of its link."""

    def __init__(self, lag: int = 0):
        self.now = 100.0
        self.inbox: deque[ToCore] = deque()
        self.sent: list[FromCore] = []
        self.waits: list[float] = []
        self.runner = FaultyRunner(lag, 64)
        limits = Limits(max_sequences=4, max_batch_tokens=64, max_tokens=1024, vocab=VOCAB)
        self.reporter = Reporter(Identity(ModelInfo(name="m"), self.runner.kv, "pod"))
        self.scheduler = Scheduler(limits, BlockPool(64), self.reporter.cache_root)
        self.loop = Loop(self.scheduler, self.runner, self, self.reporter, lambda: self.now)

    def receive(self, timeout_s: float) -> list[ToCore]:
        self.waits.append(timeout_s)
        messages = list(self.inbox)
        self.inbox.clear()
        self.now += STEP_S if timeout_s == 0 else timeout_s
        return messages

    def send(self, message: FromCore) -> None:
        self.sent.append(message)

    def submit(self, name: str, length: int = 5, max_tokens: int = 6, left_ms: float | None = None) -> None:
        tokens = array("i", range(length)).tobytes()
        self.inbox.append(Submit(id=name, tokens=tokens, sampling=Sampling(), max_tokens=max_tokens, left_ms=left_ms))

    def turns(self, count: int = 400) -> None:
        """Until idle, at most `count`."""
        for _ in range(count):
            self.loop.turn()
            if not self.scheduler.busy and not self.inbox:
                return

    def deltas(self, name: str) -> list[Delta]:
        return [d for message in self.sent if isinstance(message, Deltas) for d in message.items if d.id == name]

    def end(self, name: str) -> Delta:
        ends = [d for d in self.deltas(name) if d.finish or d.error]
        assert len(ends) == 1
        return ends[0]

    def states(self) -> list[EngineState]:
        return [message.state for message in self.sent if isinstance(message, StateReport)]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_request_is_answered(lag: int) -> None:
    world = World(lag)
    world.submit("a", length=200, max_tokens=30)
    world.turns()
    assert [t for d in world.deltas("a") for t in d.tokens] == generate(list(range(200)), 30)
    assert world.end("a").finish is Finish.LENGTH


def test_reports_come_five_times_a_second_when_busy_and_at_rest_every_half() -> None:
    world = World()
    world.submit("a", max_tokens=200)
    began = world.now
    world.turns()
    busy_s = world.now - began
    assert len(world.states()) >= busy_s * 1000 / (200 + 2 * STEP_S * 1000)
    assert world.states()[-1].running == 0, "the change to idle is told at once"
    world.sent.clear()
    for _ in range(5):
        world.loop.turn()
    assert len(world.states()) == 5
    assert world.waits[-1] == pytest.approx(IDLE_REPORT_S)
    seqs = [state.seq for state in world.states()]
    assert seqs == sorted(set(seqs))


def test_an_abort_and_a_deadline_end_requests() -> None:
    world = World()
    world.submit("gone", max_tokens=500)
    world.submit("late", max_tokens=500, left_ms=300.0)
    world.turns(5)
    world.inbox.append(Abort(ids=["gone"], reason=Reason.SLOW_READER))
    world.turns()
    assert world.end("gone").error is Reason.SLOW_READER
    assert world.end("late").error is Reason.DEADLINE_EXCEEDED


def test_a_second_request_under_a_live_id_is_not_taken() -> None:
    world = World()
    world.submit("a", max_tokens=6)
    world.submit("a", max_tokens=3)
    world.turns()
    assert len([t for d in world.deltas("a") for t in d.tokens]) == 6
    assert world.end("a").finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("kind", "old"), [("drain", None), ("stop", Reason.DRAINING)], ids=["drain-finishes", "stop-ends-all"]
)
def test_drain_and_stop(kind: Literal["drain", "stop"], old: Reason | None) -> None:
    world = World()
    world.submit("old", max_tokens=10)
    world.turns(2)
    world.inbox.append(Control(kind=kind))
    world.submit("new")
    world.turns()
    assert world.end("old").error is old
    assert world.end("new").error is Reason.DRAINING
    if kind == "stop":
        world.loop.run()  # returns at once
    assert world.states()[-1].draining


def test_a_reset_changes_epoch_and_root() -> None:
    world = World()
    world.submit("a", length=200)
    world.turns()
    before = world.states()[-1]
    assert before.evictable == 3
    world.inbox.append(Control(kind="reset_cache"))
    world.loop.turn()
    world.loop.turn()
    after = world.states()[-1]
    assert (before.epoch, after.epoch) == (0, 1)
    assert before.cache_root != after.cache_root
    assert (after.evictable, after.free) == (0, 64)


@pytest.mark.parametrize("where", ["launch", "collect"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_lost_step_fails_its_requests_and_the_loop_goes_on(where: str, lag: int) -> None:
    world = World(lag)
    (world.runner.break_launch if where == "launch" else world.runner.break_collect).add(3)
    world.submit("a", max_tokens=20)
    world.turns()
    assert world.end("a").error is Reason.INTERNAL
    world.submit("b", max_tokens=20)
    world.turns()
    assert world.end("b").finish is Finish.LENGTH
    assert world.scheduler.pool.used == 0


def test_steps_lost_in_a_row_end_the_core_but_tell_every_request_first() -> None:
    world = World()
    world.runner.break_collect = set(range(1, 100))
    for name in ("a", "b", "c", "d"):
        world.submit(name)
        if name == "c":
            with pytest.raises(RuntimeError, match="3 steps failed in a row"):
                world.turns()
            break
        world.turns()
    assert all(world.end(name).error is Reason.INTERNAL for name in ("a", "b", "c"))
