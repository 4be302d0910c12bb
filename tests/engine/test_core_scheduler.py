"""The scheduler by cases: what each step holds, who goes first, who is preempted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import VOCAB, generate
from headrace_wire.protocol import PAGE_TOKENS, Finish
from headrace_wire.reasons import Reason

# -- one request


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 300], ids=lambda n: f"prompt-{n}")
@pytest.mark.parametrize("budget", [8, 256], ids=lambda n: f"budget-{n}")
def test_a_request_gets_its_output_whole_or_chunked(lag: int, length: int, budget: int) -> None:
    world = Driven(budget=budget, lag=lag)
    world.submit("a", prompt(length), max_tokens=70)
    world.run()
    assert world.output("a") == generate(prompt(length), 70)
    assert world.end("a").finish is Finish.LENGTH


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_stop_id_ends_it_and_is_the_last_token(lag: int) -> None:
    world = Driven(lag=lag)
    stop = generate(prompt(10), 6)[5]
    world.submit("a", prompt(10), max_tokens=50, stop_ids=(stop,))
    world.run()
    assert world.output("a") == generate(prompt(10), 50, (stop,))
    assert world.end("a").finish is Finish.STOP
    assert world.scheduler.pool.used == 0


def test_without_room_for_max_tokens_it_ends_at_the_context() -> None:
    world = Driven(context=100)
    world.submit("a", prompt(90), max_tokens=1000)
    world.run()
    assert len(world.output("a")) == 10
    assert world.end("a").finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "reason"),
    [
        pytest.param([], 1, Reason.INVALID_REQUEST, id="no-prompt"),
        pytest.param([1], 0, Reason.INVALID_REQUEST, id="no-output"),
        pytest.param([VOCAB], 1, Reason.INVALID_REQUEST, id="token-beyond-vocab"),
        pytest.param([-1], 1, Reason.INVALID_REQUEST, id="negative-token"),
        pytest.param([1] * 128, 1, Reason.CONTEXT_EXCEEDED, id="prompt-fills-the-context"),
    ],
)
def test_the_impossible_is_refused_at_once(tokens: list[int], max_tokens: int, reason: Reason) -> None:
    world = Driven(context=128)
    world.submit("bad", tokens, max_tokens)
    world.submit("good", prompt(5))
    assert world.end("bad").error is reason
    world.run()
    assert world.end("good").finish is Finish.LENGTH


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    world = Driven(pages=2, context=1000)
    world.submit("big", prompt(130))
    assert world.end("big").error is Reason.CONTEXT_EXCEEDED
    world.submit("small", prompt(100))
    world.run()
    assert world.end("small").finish is Finish.LENGTH


def test_a_live_id_is_not_taken_twice() -> None:
    world = Driven()
    world.submit("a", prompt(5))
    with pytest.raises(ValueError, match="a is in use"):
        world.submit("a", prompt(5))


# -- what a step holds


def test_several_prompts_share_a_step() -> None:
    world = Driven(budget=100)
    for i in range(4):
        world.submit(f"p{i}", prompt(30, seed=i))
    plan = world.step()
    assert plan is not None
    assert [step.count for step in plan.steps] == [30, 30, 30, 10]
    assert [step.sample for step in plan.steps] == [True, True, True, False]


def test_a_long_prompt_among_decodes_costs_no_decode_its_token() -> None:
    world = Driven(pages=600, budget=64, context=32768, sequences=5)
    for i in range(4):
        world.submit(f"d{i}", prompt(5, seed=i), max_tokens=500)
    world.step()
    world.submit("long", prompt(30000, seed=9))
    before = [len(world.output(f"d{i}")) for i in range(4)]
    for n in range(1, 101):
        plan = world.step()
        assert plan is not None
        assert sum(step.count for step in plan.steps) == 64, "the step stays within the budget and uses it"
        assert [len(world.output(f"d{i}")) for i in range(4)] == [b + n for b in before]


def test_a_prompt_of_a_higher_class_is_prefilled_before_one_already_begun() -> None:
    world = Driven(budget=64)
    world.submit("low", prompt(600), priority=0)
    world.step()
    world.submit("high", prompt(100, seed=2), priority=5)
    world.step(2)
    assert len(world.output("high")) == 1
    assert world.running() == ["high", "low"]


def test_arrival_decides_inside_a_class() -> None:
    world = Driven(sequences=2)
    for name in ("a", "b", "c"):
        world.submit(name, prompt(5))
    world.step()
    assert (world.running(), world.waiting()) == (["a", "b"], ["c"])


# -- priorities and preemption


def test_a_high_class_gets_a_slot_when_low_ones_hold_all() -> None:
    world = Driven(sequences=2)
    world.submit("low1", prompt(5, 1), max_tokens=300)
    world.submit("low2", prompt(5, 2), max_tokens=300)
    world.step(3)
    world.submit("high", prompt(5, 3), max_tokens=3, priority=10)
    world.step()
    assert world.running() == ["high", "low1"]
    assert world.waiting() == ["low2"]
    world.submit("later", prompt(5, 4), max_tokens=3)
    world.step(3)
    assert world.running() == ["low1", "low2"], "re-admitted before fresh ones of its class"
    world.run()
    assert world.output("low2") == generate(prompt(5, 2), 300)


def test_equals_are_never_preempted_for_an_arrival() -> None:
    world = Driven(sequences=1)
    world.submit("a", prompt(5), max_tokens=50, priority=3)
    world.step()
    world.submit("b", prompt(5), priority=3)
    world.step(5)
    assert world.running() == ["a"]
    assert world.scheduler.preemptions == 0


def test_a_high_class_takes_pages_only_where_that_is_enough() -> None:
    world = Driven(pages=8, sequences=4, budget=1024)
    world.submit("top", prompt(260, 1), max_tokens=50, priority=10)  # 5 pages
    world.submit("low", prompt(60, 2), max_tokens=60, priority=0)  # 1 or 2 pages
    world.step()
    world.submit("high", prompt(300, 3), priority=5)  # 5 pages: not to be had while top runs
    world.step()
    assert world.running() == ["top", "low"], "low is not preempted in vain"


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_nearly_full_pool_never_stalls_nor_thrashes(lag: int) -> None:
    world = Driven(pages=10, sequences=8, budget=512, context=640, lag=lag)
    for i in range(8):
        world.submit(f"r{i}", prompt(20 + 9 * i, seed=i), max_tokens=300)
    world.run()
    for i in range(8):
        assert world.output(f"r{i}") == generate(prompt(20 + 9 * i, seed=i), 300)
    assert world.scheduler.preemptions > 0
    # Each preemption was paid for with at least a block of progress, and recomputing is bounded by what was done.
    assert world.scheduler.preemptions <= 8 * 300 // PAGE_TOKENS + 8


def test_no_victim_twice_without_a_block_of_progress_between() -> None:
    world = Driven(pages=10, sequences=8, budget=512, context=640)
    for i in range(8):
        world.submit(f"r{i}", prompt(20 + 9 * i, seed=i), max_tokens=300)
    marks: dict[str, list[int]] = {}  # computed tokens at each preemption
    while world.scheduler.busy:
        before = {seq.id: seq.computed for seq in world.scheduler.running}
        count = world.scheduler.preemptions
        world.step()
        if world.scheduler.preemptions > count:
            for seq in world.scheduler.waiting:
                if seq.id in before:
                    marks.setdefault(seq.id, []).append(before[seq.id])
    assert any(len(computed) > 1 for computed in marks.values()), "somebody was preempted more than once"
    for computed in marks.values():
        assert all(after >= first + PAGE_TOKENS for first, after in pairwise(computed))


def test_a_higher_class_too_waits_for_the_block_of_progress_of_a_victim() -> None:
    world = Driven(sequences=1)
    world.submit("low", prompt(5, 1), max_tokens=300)
    world.step(10)
    before = len(world.output("low"))
    world.submit("high1", prompt(5, 2), max_tokens=2, priority=9)
    world.step(4)
    assert (world.running(), world.scheduler.preemptions) == (["low"], 1)
    world.submit("high2", prompt(5, 3), max_tokens=2, priority=9)
    waited = 0
    while not world.output("high2"):
        world.step()
        waited += 1
    assert world.scheduler.preemptions == 2
    assert len(world.output("low")) - before == PAGE_TOKENS
    assert 1 < waited <= PAGE_TOKENS
    world.run()
    assert world.output("low") == generate(prompt(5, 1), 300)


def test_later_arrivals_of_a_class_never_delay_an_earlier_one() -> None:
    """A large prompt needs more room than is free at any moment; small ones keep coming."""
    world = Driven(pages=10, sequences=4, budget=64, context=640)
    for i in range(4):
        world.submit(f"s{i}", prompt(100, seed=i), max_tokens=20)
    world.step(2)
    world.submit("large", prompt(500, seed=50), max_tokens=5)
    steps = 0
    while not world.deltas.get("large"):
        world.submit(f"late{steps}", prompt(100, seed=100 + steps), max_tokens=20)
        world.step()
        steps += 1
        assert not any(name.startswith("late") for name in world.deltas), "one that came later was served before"
        assert steps < 100
