"""What the benchmark beside the peers measures in which order, and for how long."""

from __future__ import annotations

from benchmarks.engine.peers import plan
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = plan.Settings(("headrace", "vllm", "llama.cpp"), 9, 3, (1, 8))


def test_every_server_lives_once_a_block_and_another_one_begins() -> None:
    found = plan.blocks(SETTINGS)
    assert [block.server for block in found] == [
        *("headrace", "vllm", "llama.cpp"),
        *("vllm", "llama.cpp", "headrace"),
        *("llama.cpp", "headrace", "vllm"),
    ]
    assert [block.rounds for block in found if block.server == "vllm"] == [range(3), range(3, 6), range(6, 9)]


@given(rounds=st.integers(1, 30), starts=st.integers(1, 4))
def test_every_round_is_measured_once_for_every_server(rounds: int, starts: int) -> None:
    wanted = plan.Settings(("a", "b"), rounds, starts, (1,))
    found = plan.blocks(wanted)
    for name in wanted.servers:
        assert [n for block in found if block.server == name for n in block.rounds] == list(range(rounds))
        assert sum(block.server == name for block in found) <= starts


def test_an_estimate_prefers_what_was_measured() -> None:
    block = plan.Block("vllm", 0, range(3))
    guessed = plan.block_seconds(block, [(8, 1024)], (), {})
    assert plan.block_seconds(block, [(8, 1024)], (), {("vllm", 8): 100.0}) > guessed + 90
    assert plan.block_seconds(block, [(8, 1024)], ("gap", "prefix"), {}) == guessed + plan.GAP_S + plan.PREFIX_S
    assert plan.cell_seconds("vllm", 12, 260, {}) == 1.0  # the nearest concurrency that is known
