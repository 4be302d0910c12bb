"""Draw the next token of each row. A row's result depends on its own logits, tokens, seed and position alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace_engine.runner.cuts import kept
from headrace_engine.runner.philox import gumbel, gumbel_of
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
    """One token id per row of `logits` (fp32 [rows, vocab], left as it is); the lowest id wins ties.

    Numpy's argmax takes a twentieth of torch's time. Random rows are drawn one by one, so that their noise stays in
    the processor's cache. Raises ArithmeticError where logits are no numbers: the largest is then the first of those.
    """
    values: npt.NDArray[np.float32] = logits.numpy()
    if all(draw.greedy and not draw.adjusts for draw in draws):
        drawn: list[int] = values.argmax(-1).tolist()
    else:
        drawn = [_drawn(logits[i], draw) for i, draw in enumerate(draws)]
    if not np.isfinite(values[np.arange(len(drawn)), drawn]).all():
        raise ArithmeticError("logits are not finite")
    return drawn


def _drawn(logits: Tensor, draw: Draw) -> int:
    """One row's token."""
    if draw.adjusts:
        logits = logits.clone()
        adjust(logits, draw)
    values: npt.NDArray[np.float32] = logits.numpy()
    if draw.greedy:
        return int(values.argmax())
    s = draw.sampling
    values = values / np.float32(s.temperature)
    if draw.cuts(len(values)):
        tokens = kept(values, s)
        few = len(tokens) * 8 < len(values)
        noise = gumbel_of(s.seed, draw.position, tokens) if few else gumbel(s.seed, draw.position, len(values))[tokens]
        return int(tokens[(values[tokens] + noise).argmax()])
    noise = gumbel(s.seed, draw.position, len(values))
    noise += values  # the largest is a draw from the softmax
    return int(noise.argmax())


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
