"""Philox4x32-10: random bits from a key and a counter, without state (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit values in 64-bit words, so that products fit
Noise = npt.NDArray[np.float32]

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four 32-bit words per counter. Counters broadcast against each other; keys have as many dimensions as they."""
    c0, c1, c2, c3 = np.broadcast_arrays(*counter)
    even, odd = np.stack((c0, c2)), np.stack((c3, c1))  # the odd words in the order in which they are mixed in
    keys = np.stack((key[1], key[0]))
    factors = np.array([_M0, _M1], np.uint64).reshape(2, *([1] * c0.ndim))
    steps = np.array([_W1, _W0], np.uint64).reshape(factors.shape)
    for _ in range(_ROUNDS):
        # Each round the two halves change places: row 0 of `even` is c0 in even rounds, c2 in odd ones.
        product = even * factors
        even = product >> _SHIFT
        even ^= odd
        even ^= keys
        product &= _MASK
        odd = product[::-1]
        keys = ((keys + steps) & _MASK)[::-1]
        factors, steps = factors[::-1], steps[::-1]
    return even[0], odd[1], even[1], odd[0]


def gumbel(seed: int, position: int, vocab: int) -> Noise:
    """Gumbel noise [vocab]: a function of (seed, position, token id) alone.

    `seed`: 64 bits; `position`: of the output token, from 0.
    """
    words = _blocks(seed, position, np.arange(-(-vocab // 4), dtype=np.uint64))
    return _noise(np.stack(words, -1).reshape(-1)[:vocab])  # token id = 4 * block + word


def gumbel_of(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> Noise:
    """The same for some token ids."""
    words = np.stack(_blocks(seed, position, (tokens >> 2).astype(np.uint64)))
    return _noise(words[tokens & 3, np.arange(len(tokens))])


def _blocks(seed: int, position: int, blocks: Words) -> tuple[Words, Words, Words, Words]:
    zero = np.zeros(1, np.uint64)
    key = np.array([seed & 0xFFFFFFFF], np.uint64), np.array([seed >> 32 & 0xFFFFFFFF], np.uint64)
    return philox((blocks, np.array([position], np.uint64), zero, zero), key)


def _noise(bits: Words) -> Noise:
    uniform = bits + 0.5
    uniform *= 2.0**-32
    for _ in range(2):
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
    return uniform.astype(np.float32)
