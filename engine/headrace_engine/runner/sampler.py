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


def sample(logits: Tensor, draws: list[Draw]) -> list[int]:
    """One token id per row of `logits` (fp32 [rows, vocab]); the lowest id wins ties."""
    random = [i for i, draw in enumerate(draws) if draw.sampling.temperature >= GREEDY_BELOW]
    if not random:
        greedy: list[int] = logits.argmax(-1).tolist()
        return greedy
    scores = logits.clone() if len(random) < len(draws) else logits
    index = torch.tensor(random)
    scores[index] = _noisy(logits[index], [draws[i] for i in random])
    drawn: list[int] = scores.argmax(-1).tolist()
    return drawn


def _noisy(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Scaled and cut logits plus Gumbel noise: the largest is a draw from their softmax."""
    temperature = torch.tensor([draw.sampling.temperature for draw in draws]).unsqueeze(1)
    scaled = logits / temperature
    scaled = _cut_top_k(scaled, draws)
    scaled = _cut_top_p(scaled, draws)
    seeds = torch.tensor([_signed(draw.sampling.seed) for draw in draws], dtype=torch.int64)
    positions = torch.tensor([draw.position for draw in draws], dtype=torch.int64)
    return scaled + gumbel(seeds, positions, logits.shape[1])


def _cut_top_k(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Keep the k largest of each row that asks for it; of equals, the lower ids."""
    vocab = logits.shape[1]
    rows = [i for i, draw in enumerate(draws) if 0 < draw.sampling.top_k < vocab]
    if not rows:
        return logits
    index = torch.tensor(rows)
    ranks = torch.arange(vocab).unsqueeze(0)
    limits = torch.tensor([draws[i].sampling.top_k for i in rows]).unsqueeze(1)
    return _keep(logits, index, ranks < limits)


def _cut_top_p(logits: Tensor, draws: list[Draw]) -> Tensor:
    """Keep the smallest set of likeliest tokens that reaches top_p, at least one."""
    rows = [i for i, draw in enumerate(draws) if draw.sampling.top_p < 1.0]
    if not rows:
        return logits
    index = torch.tensor(rows)
    limits = torch.tensor([draws[i].sampling.top_p for i in rows]).unsqueeze(1)
    ordered = logits[index].softmax(-1).sort(-1, descending=True, stable=True).values
    before = ordered.cumsum(-1) - ordered
    keep = before < limits
    keep[:, 0] = True
    return _keep(logits, index, keep)


def _keep(logits: Tensor, index: Tensor, keep: Tensor) -> Tensor:
    """Rows `index` with all but the ranks in `keep` (bool, by descending order) at minus infinity."""
    order = logits[index].sort(-1, descending=True, stable=True).indices
    kept = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order, keep.expand_as(order))
    cut = logits.clone()
    cut[index] = logits[index].masked_fill(~kept, float("-inf"))
    return cut


def _signed(seed: int) -> int:
    """The same 64 bits as a signed number."""
    seed &= (1 << 64) - 1
    return seed - (1 << 64) if seed >= 1 << 63 else seed
