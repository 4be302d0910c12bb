"""Draw the next token of each row. A row's result depends on its own logits, seed and position alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_engine.runner.philox import gumbel
from headrace_wire.protocol import Sampling

GREEDY_BELOW = 1e-5  # temperatures below draw the likeliest token


@dataclass(frozen=True)
class Draw:
    """What one row asks for."""

    sampling: Sampling
    position: int  # of the drawn token in the output, from 0

    @property
    def greedy(self) -> bool:
        """The likeliest token, without noise."""
        return self.sampling.temperature < GREEDY_BELOW

    def cuts(self, vocab: int) -> bool:
        """Does top-k or top-p exclude anything?"""
        return 0 < self.sampling.top_k < vocab or self.sampling.top_p < 1.0


def sample(logits: Tensor, draws: list[Draw]) -> list[int]:
    """One token id per row of `logits` (fp32 [rows, vocab]); the lowest id wins ties."""
    random = [i for i, draw in enumerate(draws) if not draw.greedy]
    if random:
        noisy = _noisy(logits[random], [draws[i] for i in random])
        logits = noisy if len(random) == len(draws) else logits.index_copy(0, torch.tensor(random), noisy)
    drawn: list[int] = logits.argmax(-1).tolist()
    return drawn


def _noisy(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Scaled and cut logits plus Gumbel noise: the largest is a draw from their softmax."""
    vocab = logits.shape[1]
    scaled = logits / torch.tensor([draw.sampling.temperature for draw in draws]).unsqueeze(1)
    cut = [i for i, draw in enumerate(draws) if draw.cuts(vocab)]
    if cut:
        scaled[cut] = _cut(scaled[cut], [draws[i].sampling for i in cut])
    noise = gumbel([draw.sampling.seed for draw in draws], [draw.position for draw in draws], vocab)
    return scaled.add_(torch.from_numpy(noise))


def _cut(logits: Tensor, samplings: list[Sampling]) -> Tensor:
    """All but the kept tokens at minus infinity: the top_k largest, and of those the fewest that reach top_p.

    Of equal logits the lower ids rank first; the likeliest token is always kept.
    """
    vocab = logits.shape[1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([s.top_k if s.top_k > 0 else vocab for s in samplings]).unsqueeze(1)
    top_p = torch.tensor([s.top_p for s in samplings]).unsqueeze(1)
    keep = torch.arange(vocab).unsqueeze(0) < top_k
    weights = ordered.masked_fill(~keep, float("-inf")).softmax(-1)
    before = weights.cumsum(-1) - weights
    keep &= (before < top_p) | (top_p >= 1.0)
    keep[:, 0] = True
    kept = torch.zeros_like(keep).scatter_(1, order, keep)
    return logits.masked_fill(~kept, float("-inf"))
