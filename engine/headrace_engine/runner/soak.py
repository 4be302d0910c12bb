"""Requests with random cancels, stops, priorities, salts, deadlines, choices and failures, under a small pool.

For the test suite (some thousand of them) and for long runs. Whatever the mix: each request ends exactly once, with the
output that is its own, and every gauge returns to zero.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_engine.core.state import Reporter
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import FakeRunner, generate
from headrace_wire.protocol import EngineState, Finish
from headrace_wire.reasons import Reason

LENGTHS = (1, 7, 63, 64, 65, 129, 200)  # tokens of prompts
STEP_S = 0.002  # that a step takes in the world's time
LEFT_MS = 50.0
Expect = Callable[[list[int], int, tuple[int, ...]], list[int]]


class SoakFailure(AssertionError):
    """Something was not as it must be."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SoakFailure(what)


@dataclass
class Soak:
    """Sends requests at random moments and interferes with them."""

    dice: random.Random
    world: Driven
    reporter: Reporter
    expect: Expect | None = generate  # the output of a prompt; None: only its size is known
    sent: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # choices by finish or reason
    cached: int = 0  # prompt tokens found, over all that ended
    _stops: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _limits: dict[str, int] = field(default_factory=dict)

    def run(self, requests: int) -> None:
        """Send so many and wait until all have ended; raises SoakFailure."""
        until = self.sent + requests
        while self.sent < until or self.world.scheduler.busy:
            self.world.now += STEP_S
            while self.sent < until and len(self.world.scheduler.queued()) < 6 and self.dice.random() < 0.7:
                self.send()
            self.interfere()
            self.world.take(self.world.scheduler.expire(self.world.now))
            self.world.step()
            self.check_pages()
        self.check_outputs()
        self.check_rest()

    def send(self) -> None:
        """A request of one choice, seldom of three."""
        dice = self.dice
        tokens = prompt(dice.choice(LENGTHS), seed=dice.randrange(6))
        for k in range(3 if dice.random() < 0.1 else 1):
            name = f"{self.sent}:{k}"
            limit = dice.randrange(1, 60)
            stops: tuple[int, ...] = ()
            if dice.random() < 0.3:
                stops = (dice.choice(generate(tokens, limit)),)
            self._stops[name], self._limits[name] = stops, limit
            self.world.submit(
                name,
                tokens,
                limit,
                stop_ids=stops,
                priority=dice.choice((0, 0, 0, 1, 5)),
                salt=dice.choice((b"", b"a", b"b")),
                holder=dice.choice(("g1", "g2")),
                left_ms=dice.choice((None, None, None, LEFT_MS)),
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
        runner = self.world.runner
        if scheduler.running and dice.random() < 0.02 and isinstance(runner, FakeRunner):
            runner.fail_rows = {dice.choice(scheduler.running).row: Reason.OUT_OF_MEMORY}
        if dice.random() < 0.002:
            scheduler.reset_cache(f"{self.sent:08x}")

    def check_pages(self) -> None:
        """What gateways hold is what is used."""
        state = self.state()
        held = sum(one.pages for one in state.holders.values())
        _require(held == self.world.scheduler.pool.used == state.total - state.free - state.evictable, "pages are lost")

    def check_outputs(self) -> None:
        """Each request ended once, with its own output; then they are forgotten, so that a long run stays small."""
        for name, limit in self._limits.items():
            end, output = self.world.end(name), self.world.output(name)
            self.ended[(end.error or end.finish or Finish.STOP).value] += 1
            self.cached += end.cached
            if self.expect is None:
                _require(len(output) <= limit, f"{name} is too long")
                continue
            expected = self.expect(self.world.prompts[name], limit, self._stops[name])
            _require(output == (expected if end.error is None else expected[: len(output)]), f"{name} is another's")
        for kept in (self._limits, self._stops, self.world.prompts, self.world.deltas):
            kept.clear()
        self.world.plans.clear()

    def check_rest(self) -> None:
        """Every gauge is back at zero."""
        state = self.state()
        rest = (state.running, state.waiting, state.queued_tokens, state.holders, state.oldest_waiting_s)
        _require(rest == (0, 0, 0, {}, None), f"not at rest: {rest}")
        _require(state.free + state.evictable == state.total, "pages are lost at rest")

    def state(self) -> EngineState:
        """What the engine says of itself."""
        return self.reporter.state(self.world.scheduler, self.world.now)
