"""Philox against its published vectors; sampling: its distribution, its cuts, and what it must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.runner.cuts import kept
from headrace_engine.runner.philox import gumbel, gumbel_of, philox
from headrace_engine.runner.sampler import Draw, sample
from headrace_wire.protocol import Sampling

VOCAB = 50


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        pytest.param([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8", id="zeros"),
        pytest.param([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd", id="ones"),
        pytest.param(
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
            id="pi",
        ),
    ],
)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], words: str) -> None:
    c = tuple(np.array([value], np.uint64) for value in counter)
    k = tuple(np.array([value], np.uint64) for value in key)
    got = philox(c, k)  # type: ignore[arg-type]
    assert [int(word[0]) for word in got] == [int(word, 16) for word in words.split()]


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    noises = []
    for seed, position in ((7, 0), (2**63 + 1, 5), (7, 1)):
        noise = gumbel(seed, position, 101)
        assert (gumbel(seed, position, 64) == noise[:64]).all()
        tokens = np.array([0, 3, 4, 50, 97, 100])
        assert (gumbel_of(seed, position, tokens) == noise[tokens]).all()
        assert np.isfinite(noise).all()
        noises.append(noise.tobytes())
    assert len(set(noises)) == 3


def test_all_64_bits_of_a_seed_count() -> None:
    noises = [gumbel(seed, 0, 8).tobytes() for seed in (0, 1, 1 << 31, 1 << 32, 1 << 63)]
    assert len(set(noises)) == 5
    assert gumbel(-1, 0, 8).tobytes() == gumbel(2**64 - 1, 0, 8).tobytes()


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


MIXED = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.7, top_k=5, seed=4),
    Sampling(temperature=1.3, top_p=0.8, seed=5),
    Sampling(temperature=1.0, top_k=20, top_p=0.5, seed=2**64 - 1),
    Sampling(temperature=0.0, top_k=1),
]


def test_a_batch_gives_what_each_row_gives_alone_in_any_order() -> None:
    values = logits(len(MIXED))
    draws = [Draw(sampling, position) for position, sampling in enumerate(MIXED)]
    together = sample(values, draws)
    assert together == [sample(values[i : i + 1], [draws[i]])[0] for i in range(len(MIXED))]
    order = [4, 1, 5, 0, 3, 2]
    assert sample(values[order], [draws[i] for i in order]) == [together[i] for i in order]


def test_sampling_leaves_the_logits_alone() -> None:
    values = logits(len(MIXED))
    before = values.clone()
    sample(values, [Draw(sampling, 0) for sampling in MIXED])
    assert torch.equal(values, before)


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    values = torch.zeros(1, VOCAB)
    values[0, [9, 4, 30]] = 5.0
    assert sample(values, [Draw(Sampling(temperature=0.0), 0)]) == [4]


def draw_many(values: torch.Tensor, sampling: Sampling, count: int = 4000) -> torch.Tensor:
    """How often each token was drawn, as a share, over output positions."""
    drawn = sample(values.expand(count, -1), [Draw(sampling, position) for position in range(count)])
    return torch.bincount(torch.tensor(drawn), minlength=VOCAB) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    values = logits(1, seed=1)
    want = (values[0] / temperature).softmax(-1)
    got = draw_many(values, Sampling(temperature=temperature, seed=99))
    assert (got - want).abs().max() < 0.03


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        pytest.param(Sampling(top_k=1), 1, id="top-k-1"),
        pytest.param(Sampling(top_k=3), 3, id="top-k-3"),
        pytest.param(Sampling(top_p=1e-9), 1, id="tiny-top-p-keeps-one"),
        pytest.param(Sampling(top_p=0.5), 1, id="top-p-below-the-first"),
        pytest.param(Sampling(top_p=0.7), 2, id="top-p-two"),
        pytest.param(Sampling(top_p=0.95, top_k=2), 2, id="both"),
        pytest.param(Sampling(top_p=0.8, top_k=4), 2, id="top-p-is-of-what-top-k-left"),
    ],
)
def test_cuts_keep_the_likeliest(sampling: Sampling, kept: int) -> None:
    shares = torch.tensor([0.6, 0.15, 0.05, 0.04] + [0.16 / (VOCAB - 4)] * (VOCAB - 4))
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))
    values = torch.empty(1, VOCAB)
    values[0, order] = shares.log()
    drawn = draw_many(values, sampling)
    assert set(drawn.nonzero().flatten().tolist()) == set(order[:kept].tolist())


def test_top_k_among_equals_keeps_exactly_k() -> None:
    drawn = draw_many(torch.zeros(1, VOCAB), Sampling(top_k=3, seed=1))
    assert drawn.nonzero().flatten().tolist() == [0, 1, 2]


def sorted_cut(values: torch.Tensor, s: Sampling) -> list[int]:
    """The definition, by sorting everything."""
    ordered, order = values.double().sort(descending=True, stable=True)
    keep = torch.ones(len(values), dtype=torch.bool)
    if s.top_k:
        keep[s.top_k :] = False
    if s.min_p:
        keep &= ordered >= ordered[0] + np.log(s.min_p)
    weights = ordered.masked_fill(~keep, float("-inf")).softmax(-1)
    if s.top_p < 1:
        keep &= weights.cumsum(-1) - weights < s.top_p
    keep[0] = True
    return sorted(order[keep].tolist())


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 50, 700]),
    st.sampled_from([0.05, 1.0, 6.0]),
    st.sampled_from([0, 1, 2, 40, 600]),
    st.sampled_from([1.0, 0.999, 0.9, 0.3]),
    st.sampled_from([0.0, 0.001, 0.2]),
)
def test_cuts_are_those_of_a_full_sort(
    seed: int, vocab: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    values = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread
    s = Sampling(top_k=top_k, top_p=top_p, min_p=min_p)
    assert kept(values.numpy(), s).tolist() == sorted_cut(values, s)


@pytest.mark.parametrize("sampling", [Sampling(top_k=3), Sampling(top_p=0.9), Sampling(min_p=0.1)])
def test_a_row_of_nothing_but_nan_still_gives_a_token(sampling: Sampling) -> None:
    assert kept(np.full(VOCAB, np.nan, np.float32), sampling).tolist() == [0]
