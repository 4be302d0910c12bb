"""2,000 requests with random cancels, stops, priorities, salts, deadlines and choices under a small pool.

Whatever the mix: each request ends exactly once with the output that is its own, and every gauge returns to zero.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace_engine.core.plan import KvSpec
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import FakeRunner, generate
from headrace_wire.protocol import ModelInfo
from headrace_wire.reasons import Reason

REQUESTS = 2000
CONTEXT = 320
PAGES = 12
LENGTHS = (1, 7, 63, 64, 65, 129, 200)


@dataclass
class Soak:
    """Sends requests at random moments and interferes with them."""

    dice: random.Random
    world: Driven
    sent: int = 0
    stops: dict[str, tuple[int, ...]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)

    def send(self) -> None:
        """A request of one choice, seldom of three."""
        dice = self.dice
        choices = 3 if dice.random() < 0.1 else 1
        tokens = prompt(dice.choice(LENGTHS), seed=dice.randrange(6))
        for k in range(choices):
            name = f"{self.sent}:{k}"
            limit = dice.randrange(1, 60)
            expected = generate(tokens, limit)
            self.stops[name] = (dice.choice(expected),) if dice.random() < 0.3 else ()
            self.limits[name] = limit
            self.world.submit(
                name,
                tokens,
                limit,
                stop_ids=self.stops[name],
                priority=dice.choice((0, 0, 0, 1, 5)),
                salt=dice.choice((b"", b"a", b"b")),
                holder=dice.choice(("g1", "g2")),
                left_ms=dice.choice((None, None, None, 50.0)),
                after=f"{self.sent}:0" if k else "",
            )
        self.sent += 1

    def interfere(self) -> None:
        """Cancel some, lose a row, begin a new epoch."""
        scheduler, dice = self.world.scheduler, self.dice
        live = [seq.id for seq in (*scheduler.running, *scheduler.queued())]
        if live and dice.random() < 0.1:
            picked = dice.sample(live, min(len(live), dice.randrange(1, 4)))
            self.world.take(scheduler.abort(picked, dice.choice((Reason.CANCELLED, Reason.SLOW_READER))))
        if scheduler.running and dice.random() < 0.02:
            runner = self.world.runner
            assert isinstance(runner, FakeRunner)
            runner.fail_rows = {dice.choice(scheduler.running).row: Reason.OUT_OF_MEMORY}
        if dice.random() < 0.002:
            scheduler.reset_cache(f"{self.sent:04x}")

    def run(self, check: Callable[[], None]) -> None:
        """Until all was sent and has ended."""
        while self.sent < REQUESTS or self.world.scheduler.busy:
            self.world.now += 0.002
            while self.sent < REQUESTS and len(self.world.scheduler.queued()) < 6 and self.dice.random() < 0.7:
                self.send()
            self.interfere()
            self.world.take(self.world.scheduler.expire(self.world.now))
            self.world.step()
            check()


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
def test_every_gauge_returns_to_zero(lag: int) -> None:
    world = Driven(pages=PAGES, sequences=5, budget=96, context=CONTEXT, lag=lag)
    reporter = Reporter(Identity(ModelInfo(name="m"), KvSpec(pages=PAGES, groups=[], layout="fake"), "i"))
    soak = Soak(random.Random(lag), world)

    def check() -> None:
        state = reporter.state(world.scheduler, world.now)
        used = state.total - state.free - state.evictable
        assert used == world.scheduler.pool.used == sum(held.pages for held in state.holders.values())

    soak.run(check)
    state = reporter.state(world.scheduler, world.now)
    assert (state.running, state.waiting, state.queued_tokens, state.holders) == (0, 0, 0, {})
    assert (state.oldest_waiting_s, state.free + state.evictable) == (None, state.total)
    ends = {name: world.end(name) for name in soak.limits}
    for name, end in ends.items():
        expected = generate(world.prompts[name], soak.limits[name], soak.stops[name])
        output = world.output(name)
        assert output == (expected if end.error is None else expected[: len(output)])
    reasons = {end.error or end.finish for end in ends.values()}
    assert len(reasons) >= 6, reasons
    assert state.preemptions > 0
    assert any(end.cached for end in ends.values())
