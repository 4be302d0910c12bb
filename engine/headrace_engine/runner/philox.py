"""Philox4x32-10: random bits from a key and a counter, without state (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four 32-bit words per counter. All int64 tensors of 32-bit values that broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_number in range(_ROUNDS):
        # A product of two 32-bit words may wrap into the sign; the shift's copies of it are masked away.
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ ((k0 + round_number * _W0) & _MASK),
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ ((k1 + round_number * _W1) & _MASK),
            p0 & _MASK,
        )
    return c0, c1, c2, c3


def gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Gumbel noise, fp32 [rows, vocab]: a function of (seed, position, token id) alone.

    `seeds`: int64 [rows], 64 bits each; `positions`: int64 [rows], of the output token, from 0.
    """
    lanes = -(-vocab // 4)
    block = torch.arange(lanes, dtype=torch.int64, device=seeds.device).unsqueeze(0)
    zero = torch.zeros_like(block)
    low, high = seeds & _MASK, (seeds >> 32) & _MASK
    counter = (block, positions.unsqueeze(1), zero, zero)
    words = philox(counter, (low.unsqueeze(1), high.unsqueeze(1)))
    bits = torch.stack(words, -1).flatten(1)[:, :vocab]  # token id = 4 * block + word
    uniform = (bits.double() + 0.5) * 2.0**-32
    return uniform.log_().neg_().log_().neg_().float()
