"""Philox4x32-10: random bits from a key and a counter, without state (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit values in 64-bit words, so that products fit

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four 32-bit words per counter; counters and keys broadcast against each other."""
    c0, c1, c2, c3, k0, k1 = np.broadcast_arrays(*counter, *key)
    even, odd = np.stack((c0, c2)), np.stack((c3, c1))  # the odd words in the order in which they are mixed in
    keys = np.stack((k1, k0))
    factors = np.array([_M0, _M1], np.uint64).reshape(2, *([1] * c0.ndim))
    steps = np.array([_W1, _W0], np.uint64).reshape(factors.shape)
    for _ in range(_ROUNDS):
        # Each round the two halves change places: row 0 of `even` is c0 in even rounds, c2 in odd ones.
        product = even * factors
        even = (product >> _SHIFT) ^ odd ^ keys
        odd = (product & _MASK)[::-1]
        keys = ((keys + steps) & _MASK)[::-1]
        factors, steps = factors[::-1], steps[::-1]
    return even[0], odd[1], even[1], odd[0]


def gumbel(seeds: list[int], positions: list[int], vocab: int) -> npt.NDArray[np.float32]:
    """Gumbel noise [rows, vocab]: a function of (seed, position, token id) alone.

    `seeds`: 64 bits each; `positions`: of the output token, from 0.
    """
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], np.uint64).reshape(-1, 1)
    position = np.array(positions, np.uint64).reshape(-1, 1)
    block = np.arange(-(-vocab // 4), dtype=np.uint64).reshape(1, -1)
    zero = np.zeros((1, 1), np.uint64)
    words = philox((block, position, zero, zero), (seed & _MASK, seed >> _SHIFT))
    bits = np.stack(words, -1).reshape(len(seeds), -1)[:, :vocab]  # token id = 4 * block + word
    uniform = (bits + 0.5) * 2.0**-32
    return (-np.log(-np.log(uniform))).astype(np.float32)
