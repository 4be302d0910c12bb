"""What the benchmark beside the peers measures in which order, and for how long."""

from __future__ import annotations

from benchmarks.engine.peers import plan
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = plan.Settings(("headrace", "vllm", "llama.cpp"), 9, 3, (1, 8))


def test_every_server_lives_once_a_block_and_another_one_begins() -> None:
    found = plan.blocks(SETTINGS)
    assert [block.servers for block in found] == [
        ("headrace", "vllm", "llama.cpp"),
        ("vllm", "llama.cpp", "headrace"),
        ("llama.cpp", "headrace", "vllm"),
    ]
    assert [block.rounds for block in found] == [range(3), range(3, 6), range(6, 9)]


@given(rounds=st.integers(1, 30), starts=st.integers(1, 4))
def test_every_round_is_measured_once_for_every_server(rounds: int, starts: int) -> None:
    wanted = plan.Settings(("a", "b"), rounds, starts, (1,))
    found = plan.blocks(wanted)
    assert [n for block in found for n in block.rounds] == list(range(rounds))
    assert all(sorted(block.servers) == ["a", "b"] for block in found)
    assert len(found) <= starts


def test_an_estimate_prefers_what_was_measured() -> None:
    guessed = plan.life_seconds("vllm", [(8, 1024)], (), {})
    assert plan.life_seconds("vllm", [(8, 1024)], (), {("vllm", 8): 100.0}) > guessed + 90
    assert plan.life_seconds("vllm", [(8, 1024)], ("gap", "prefix"), {}) == guessed + plan.GAP_S + plan.PREFIX_S
    assert plan.cell_seconds("vllm", 12, 260, {}) == 1.0  # the nearest concurrency that is known
