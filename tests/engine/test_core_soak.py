"""2,000 requests with random cancels, stops, priorities, salts, deadlines and choices under a small pool.

Whatever the mix: each request ends exactly once with the output that is its own, and every gauge returns to zero. The
same code runs for half an hour in benchmarks/engine/soak.py.
"""

from __future__ import annotations

import random

import pytest

from headrace_engine.core.budget import Pace
from headrace_engine.core.plan import KvSpec
from headrace_engine.core.state import Identity, Reporter
from headrace_engine.runner.driven import Driven
from headrace_engine.runner.soak import Soak, SoakFailure
from headrace_wire.protocol import ModelInfo

REQUESTS = 2000
PAGES = 12


def soak(lag: int) -> Soak:
    world = Driven(pages=PAGES, sequences=5, budget=96, context=320, lag=lag, pace=Pace() if lag else None)
    reporter = Reporter(Identity(ModelInfo(name="m"), KvSpec(pages=PAGES, groups=[], layout="fake"), "i"))
    return Soak(random.Random(lag), world, reporter)


@pytest.mark.parametrize("lag", [0, 1, 2], ids=lambda lag: f"lag-{lag}")
def test_every_gauge_returns_to_zero(lag: int) -> None:
    running = soak(lag)
    running.run(REQUESTS)
    assert running.ended.total() >= REQUESTS
    assert len(running.ended) >= 6, running.ended
    assert running.cached > 0
    assert running.state().preemptions > 0


def test_a_lost_page_is_noticed() -> None:
    running = soak(0)
    running.run(20)
    running.world.scheduler.pool.allocate(1)
    with pytest.raises(SoakFailure, match="pages are lost"):
        running.run(20)


def test_an_output_that_is_anothers_is_noticed() -> None:
    running = soak(0)
    running.expect = lambda tokens, limit, stops: [0] * limit
    with pytest.raises(SoakFailure, match="is another's"):
        running.run(20)
