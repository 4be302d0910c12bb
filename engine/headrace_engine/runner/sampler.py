"""Draw the next token of each row. A row's result depends on its own logits, tokens, seed and position alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace_engine.runner.philox import gumbel
from headrace_engine.runner.sampler_adjust import adjust
from headrace_wire.protocol import Sampling, TokenLogprob

GREEDY_BELOW = 1e-5  # temperatures below draw the likeliest token


@dataclass(frozen=True)
class Draw:
    """What one row asks for."""

    sampling: Sampling
    position: int  # of the drawn token in the output, from 0
    tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # prompt, then output
    prompt: int = 0  # tokens of the prompt
    stop_ids: list[int] | None = None

    @property
    def greedy(self) -> bool:
        """The likeliest token, without noise."""
        return self.sampling.temperature < GREEDY_BELOW

    @property
    def adjusts(self) -> bool:
        """Are logits changed before anything else?"""
        s = self.sampling
        penalised = s.presence or s.frequency or s.repetition != 1.0
        return bool(penalised or s.bias or self.position < s.min_tokens)

    def cuts(self, vocab: int) -> bool:
        """Does top-k, top-p or min-p exclude anything?"""
        s = self.sampling
        return 0 < s.top_k < vocab or s.top_p < 1.0 or s.min_p > 0.0


def sample(logits: Tensor, draws: list[Draw]) -> list[int]:
    """One token id per row of `logits` (fp32 [rows, vocab], left as it is); the lowest id wins ties."""
    changed = [i for i, draw in enumerate(draws) if draw.adjusts]
    if changed:
        logits = logits.clone()
        for i in changed:
            adjust(logits[i], draws[i])
    random = [i for i, draw in enumerate(draws) if not draw.greedy]
    if random:
        noisy = _noisy(logits[random], [draws[i] for i in random])
        logits = noisy if len(random) == len(draws) else logits.index_copy(0, torch.tensor(random), noisy)
    drawn: list[int] = logits.numpy().argmax(-1).tolist()  # torch's own takes twenty times as long
    return drawn


def logprobs(logits: Tensor, draws: list[Draw], drawn: list[int]) -> dict[int, TokenLogprob]:
    """By index of the rows that ask for them; `logits` fp32 [rows, vocab] as the model gave them."""
    asked = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    if not asked:
        return {}
    all_of = logits[asked].log_softmax(-1)
    own = all_of.gather(1, torch.tensor([drawn[i] for i in asked]).unsqueeze(1)).squeeze(1).tolist()
    counts = [min(draws[i].sampling.logprobs or 0, logits.shape[1]) for i in asked]
    values, ids = all_of.topk(max(counts), dim=-1) if any(counts) else (all_of[:, :0], all_of[:, :0].long())
    found: dict[int, TokenLogprob] = {}
    for row, (i, count) in enumerate(zip(asked, counts, strict=True)):
        pairs = zip(ids[row, :count].tolist(), values[row, :count].tolist(), strict=True)
        found[i] = TokenLogprob(logprob=own[row], top=list(pairs))
    return found


def report(logits: Tensor, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Logprobs of given tokens, one a row of `logits` (fp32 [rows, vocab]), with the `top` likeliest of each row."""
    draw = Draw(Sampling(logprobs=top), 0)
    found = logprobs(logits, [draw] * len(tokens), tokens)
    return [found[i] for i in range(len(tokens))]


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
    """All but the kept tokens at minus infinity.

    Kept are the top_k largest, of those the ones with min_p of the likeliest one's probability, and of those the fewest
    that reach top_p. Of equal logits the lower ids rank first; the likeliest token is always kept.
    """
    vocab = logits.shape[1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([s.top_k if s.top_k > 0 else vocab for s in samplings]).unsqueeze(1)
    top_p = torch.tensor([s.top_p for s in samplings]).unsqueeze(1)
    least = torch.tensor([s.min_p for s in samplings]).unsqueeze(1).log()  # minus infinity where min_p is 0
    keep = (torch.arange(vocab).unsqueeze(0) < top_k) & (ordered - ordered[:, :1] >= least)
    weights = ordered.masked_fill(~keep, float("-inf")).softmax(-1)
    before = weights.cumsum(-1) - weights
    keep &= (before < top_p) | (top_p >= 1.0)
    keep[:, 0] = True
    kept = torch.zeros_like(keep).scatter_(1, order, keep)
    return logits.masked_fill(~kept, float("-inf"))
