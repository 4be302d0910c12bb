"""What a request may change in its logits, and what it is told of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.runner.sampler import Draw, logprobs, sample
from headrace_engine.runner.sampler_adjust import adjust
from headrace_wire.protocol import Sampling

VOCAB = 12
PROMPT = [1, 2, 2]
OUTPUT = [3, 4, 4, 2]


def draw(stop_ids: list[int] | None = None, output: list[int] = OUTPUT, **sampling: Any) -> Draw:
    tokens = np.array(PROMPT + output, np.int32)
    return Draw(Sampling(temperature=0.0, **sampling), len(output), tokens, len(PROMPT), stop_ids)


def changed(asked: Draw, value: float = 2.0) -> dict[int, float]:
    """Token ids whose logit is no longer `value`, with the new one."""
    logits = torch.full((VOCAB,), value)
    adjust(logits, asked)
    return {token: logit for token, logit in enumerate(logits.tolist()) if logit != value}


INF = float("inf")
CASES: dict[str, tuple[Draw, dict[int, float]]] = {
    "presence-counts-the-output-once": (draw(presence=0.5), {2: 1.5, 3: 1.5, 4: 1.5}),
    "frequency-counts-each-time": (draw(frequency=0.5), {2: 1.5, 3: 1.5, 4: 1.0}),
    "negative-penalties-encourage": (draw(presence=-1.0), {2: 3.0, 3: 3.0, 4: 3.0}),
    "repetition-counts-the-prompt-too": (draw(repetition=2.0), {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}),
    "bias": (draw(bias=((0, 1.5), (11, -100.0))), {0: 3.5, 11: -98.0}),
    "stop-ids-too-early": (draw([5, 6], min_tokens=5), {5: -INF, 6: -INF}),
    "stop-ids-in-time": (draw([5, 6], min_tokens=4), {}),
    "all": (draw([4], presence=0.5, repetition=2.0, bias=((1, 2.0),), min_tokens=9), {1: 3.0, 2: 0.5, 3: 0.5, 4: -INF}),
    "no-output-yet": (draw(presence=1.0, frequency=1.0, output=[]), {}),
}


@pytest.mark.parametrize(("asked", "expected"), CASES.values(), ids=CASES)
def test_adjustments(asked: Draw, expected: dict[int, float]) -> None:
    assert changed(asked) == expected


def test_repetition_pushes_negative_logits_down() -> None:
    assert changed(draw(repetition=2.0), -1.0) == {1: -2.0, 2: -2.0, 3: -2.0, 4: -2.0}


def test_rows_that_ask_for_nothing_are_not_copied_and_others_do_not_touch_them() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 4] = 1.0
    plain = Draw(Sampling(temperature=0.0), 4)
    assert sample(logits, [plain, draw(presence=2.0)]) == [4, 0]
    assert logits[1, 4] == 1.0


def test_a_bias_forces_and_forbids() -> None:
    logits = torch.zeros(1, VOCAB)
    assert sample(logits, [draw(bias=((7, 100.0),))]) == [7]
    assert sample(logits, [draw(bias=tuple((token, -100.0) for token in range(VOCAB - 1)))]) == [VOCAB - 1]


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, {0, 1, 2, 3}), (0.2, {0, 1, 2}), (0.5, {0, 1}), (1.0, {0})])
def test_min_p_is_a_share_of_the_likeliest(min_p: float, kept: set[int]) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.14, 0.06]]).log().expand(4000, -1)
    sampling = Sampling(min_p=min_p, seed=3)
    assert set(sample(logits, [Draw(sampling, position) for position in range(4000)])) == kept


class TestLogprobs:
    def test_are_those_of_the_plain_logits(self) -> None:
        logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
        draws = [draw(logprobs=2, presence=2.0), draw(), draw(logprobs=0)]
        found = logprobs(logits, draws, [5, 6, 7])
        want = logits.log_softmax(-1)
        assert set(found) == {0, 2}
        assert found[0].logprob == pytest.approx(want[0, 5].item(), abs=1e-6)
        values, ids = want[0].topk(2)
        assert [token for token, _ in found[0].top] == ids.tolist()
        assert [value for _, value in found[0].top] == pytest.approx(values.tolist(), abs=1e-6)
        assert found[2].top == []

    def test_more_than_the_vocabulary(self) -> None:
        found = logprobs(torch.zeros(1, 3), [draw(logprobs=20)], [0])
        assert len(found[0].top) == 3


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 3]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    presence=st.sampled_from([0.0, 1.0]),
    frequency=st.sampled_from([0.0, -1.0]),
    repetition=st.sampled_from([1.0, 1.3]),
    bias=st.sampled_from([(), ((3, 2.0),)]),
    min_tokens=st.sampled_from([0, 10]),
)


@given(st.lists(samplings, min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_batch_in_any_order_gives_what_each_row_gives_alone(rows: list[Sampling], random: Any) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(len(rows))) * 2
    tokens = np.array(PROMPT + OUTPUT, np.int32)
    draws = [Draw(sampling, len(OUTPUT), tokens, len(PROMPT), [0, 5]) for sampling in rows]
    alone = [sample(logits[i : i + 1], [draws[i]])[0] for i in range(len(rows))]
    order = list(range(len(rows)))
    random.shuffle(order)
    assert sample(logits[order], [draws[i] for i in order]) == [alone[i] for i in order]
