"""The prefix cache: what is reused, what is never shared, what a new epoch forgets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_engine.core.scheduler import Limits
from headrace_engine.core.state import held_by
from headrace_engine.runner.driven import Driven, prompt
from headrace_engine.runner.fake import VOCAB, generate
from headrace_wire.reasons import Reason


def run_one(world: Driven, name: str, tokens: list[int], **more: Any) -> int:
    """Cached tokens of a request run alone."""
    world.submit(name, tokens, **more)
    world.run()
    assert world.output(name) == generate(tokens, 4)
    return world.end(name).cached


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        pytest.param(200, 200, 192, id="same-prompt"),
        pytest.param(128, 128, 64, id="whole-prompt-cached-still-computes"),
        pytest.param(63, 63, 0, id="no-full-block"),
        pytest.param(130, 70, 64, id="shorter"),
        pytest.param(130, 300, 128, id="longer"),
    ],
)
@pytest.mark.parametrize("lag", [0, 1])
def test_full_blocks_of_a_shared_prefix_are_reused(first: int, second: int, hit: int, lag: int) -> None:
    world = Driven(lag=lag)
    assert run_one(world, "a", prompt(first)) == 0
    assert run_one(world, "b", prompt(second)) == hit
    firsts = [delta for delta in world.deltas["b"] if delta.tokens]
    assert firsts[0].cached == firsts[-1].cached == hit


def test_a_follow_up_hits_the_output_too() -> None:
    world = Driven()
    world.submit("a", prompt(100), max_tokens=100)
    world.run()
    assert run_one(world, "b", prompt(100) + world.output("a")) == 192


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({}, {"salt": b"t"}, id="with-and-without-salt"),
        pytest.param({"salt": b"s"}, {"salt": b"t"}, id="two-salts"),
        pytest.param({}, {"adapter": b"t"}, id="with-and-without-adapter"),
        pytest.param({"adapter": b"v1"}, {"adapter": b"v2"}, id="one-adapter-name-two-contents"),
        pytest.param({"salt": b"x"}, {"adapter": b"x"}, id="salt-equal-to-an-adapter"),
    ],
)
def test_prefixes_are_isolated(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    world = Driven()
    assert run_one(world, "a", prompt(200), **one) == 0
    assert run_one(world, "b", prompt(200), **other) == 0
    assert run_one(world, "c", prompt(200), **one) == 192
    assert run_one(world, "d", prompt(200), **other) == 192


def test_a_reset_begins_a_new_epoch_also_for_what_runs_on() -> None:
    world = Driven()
    run_one(world, "before", prompt(200))
    world.submit("across", prompt(300), max_tokens=4)
    world.submit("queued", prompt(200), max_tokens=4)
    world.scheduler.limits = Limits(max_sequences=1, max_batch_tokens=64, max_tokens=2048, vocab=VOCAB)
    world.step()
    assert world.running() == ["across"]
    world.scheduler.reset_cache("01")
    world.run()
    assert world.end("queued").cached == 0
    assert run_one(world, "after", prompt(300)) == 192, "only what was computed since is found"


def test_recomputing_is_not_a_cache_hit() -> None:
    world = Driven(sequences=1)
    world.submit("low", prompt(200), max_tokens=50)
    world.step(5)
    world.submit("high", prompt(5), priority=1)
    world.run()
    assert world.scheduler.preemptions == 1
    assert world.end("low").cached == 0
    reuse = world.scheduler.reuse
    assert (reuse.asked_tokens, reuse.hit_tokens) == (205, 0), "nor is its prompt counted twice"


def test_a_block_of_a_failed_step_is_never_found() -> None:
    world = Driven(lag=1, budget=64)
    world.submit("bad", prompt(200))
    world.step(2)  # two chunks launched, one collected
    world.runner.fail_rows = {world.scheduler.running[0].row: Reason.INTERNAL}
    world.run()
    assert world.end("bad").error is Reason.INTERNAL
    assert run_one(world, "good", prompt(200)) == 64


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    world = Driven(budget=400)
    for i in range(4):
        world.submit(f"choice{i}", prompt(300))
    world.submit("other", prompt(50, seed=9))
    world.step()
    assert world.running() == ["choice0", "other"], "nobody else waits for it"
    world.run()
    assert [world.end(f"choice{i}").cached for i in range(4)] == [0, 256, 256, 256]
    assert world.runner.tokens < 300 + 3 * 50 + 50 + 5 * 4
    for i in range(4):
        assert world.output(f"choice{i}") == generate(prompt(300), 4)


@pytest.mark.parametrize(
    ("leader", "follower", "waits"),
    [
        pytest.param({}, {}, True, id="same-class"),
        pytest.param({"priority": 1}, {}, True, id="behind-a-higher-class"),
        pytest.param({}, {"priority": 1}, False, id="never-behind-a-lower-class"),
        pytest.param({"salt": b"a"}, {"salt": b"b"}, False, id="another-salt"),
    ],
)
def test_who_waits_for_a_prefix_being_computed(leader: dict[str, Any], follower: dict[str, Any], waits: bool) -> None:
    world = Driven(budget=64)
    world.submit("leader", prompt(300), **leader)
    world.step()
    world.scheduler.limits = Limits(max_sequences=8, max_batch_tokens=4096, max_tokens=2048, vocab=VOCAB)
    world.submit("follower", prompt(300), **follower)
    world.step()
    assert ("follower" in world.waiting()) == waits
    world.run()
    assert world.output("follower") == generate(prompt(300), 4)


def test_a_leader_that_goes_away_frees_those_that_waited_for_it() -> None:
    world = Driven(budget=64)
    world.submit("leader", prompt(300))
    world.submit("follower", prompt(300))
    world.step(2)
    assert world.waiting() == ["follower"]
    world.take(world.scheduler.abort(["leader"], Reason.CANCELLED))
    world.run()
    assert world.end("follower").cached == 128
    assert world.output("follower") == generate(prompt(300), 4)


class TestFollowers:
    """Choices of one request: they wait for the first one's prefill and share its full blocks."""

    def start(self, lag: int = 0, **limits: int) -> Driven:
        world = Driven(lag=lag, **limits)
        for i in range(4):
            world.submit(f"r:{i}", prompt(150), max_tokens=5, after="r:0" if i else "")
        return world

    @pytest.mark.parametrize("lag", [0, 1, 2])
    def test_the_prompt_is_computed_once(self, lag: int) -> None:
        world = self.start(lag)
        world.run()
        assert [world.end(f"r:{i}").cached for i in range(4)] == [0, 128, 128, 128]
        assert all(world.output(f"r:{i}") == generate(prompt(150), 5) for i in range(4))

    def test_they_count_as_waiting_with_what_is_left_to_compute(self) -> None:
        world = self.start(budget=64)
        world.step()
        held = held_by(world.scheduler)[""]
        assert len(world.scheduler.queued()) == 3
        assert (held.requests, held.queued_tokens) == (4, 150 - 64 + 3 * (150 - 128))

    def test_another_leads_where_the_first_ends_early(self) -> None:
        world = self.start(budget=64)
        world.step()
        world.take(world.scheduler.abort(["r:0"], Reason.CANCELLED))
        world.run()
        assert [world.end(f"r:{i}").cached for i in range(1, 4)] == [64, 128, 128]
        assert world.scheduler.pool.used == 0

    def test_all_can_be_ended_in_any_order(self) -> None:
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
            world = self.start(budget=64)
            world.step()
            world.take(world.scheduler.abort([f"r:{i}" for i in order], Reason.CANCELLED))
            assert all(world.end(f"r:{i}").error is Reason.CANCELLED for i in range(4))
            world.run()
            assert (world.scheduler.pool.used, world.scheduler.queued()) == (0, [])

    def test_one_that_comes_late_does_not_wait(self) -> None:
        world = Driven()
        world.submit("r:1", prompt(150), after="r:0")
        world.run()
        assert world.end("r:1").finish is not None
