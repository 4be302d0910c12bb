"""Five minutes of the recorded conversation service, scaled to an engine on one thread, and the load for calibration.

Lengths are divided, requests multiplied or thinned by chance to the load that is wanted: the pattern in time stays as
it was recorded. The calibration's lengths come from another part of the trace, its words from other seeds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from headrace.bench import lone, packed
from headrace.bench.arrivals import multiply, thin
from headrace.bench.profile import Profile
from headrace.bench.trace import Trace

TRACE = "azure_llm_2023_conv"
REPLAY_AT_S, CALIBRATION_AT_S = 600.0, 2400.0  # where in the trace
LEAST_OUTPUT = 2  # tokens: one gap
ROUNDS = 8  # of the search for the load


@dataclass(frozen=True)
class Scale:
    """How the trace is brought down to the engine."""

    divisor: float = 4.0  # of lengths
    context: int = 2048  # tokens of prompt and output
    least_prompt: int = 24  # tokens: the chat template's and some words


def part(at_s: float, seconds: float, scale: Scale) -> Trace:
    """So many seconds of the trace from `at_s` on, lengths scaled."""
    trace = packed.load(packed.FOLDER / f"{TRACE}.npz")
    if not isinstance(trace, Trace):
        raise TypeError(f"{TRACE} has no arrivals")
    inside = np.flatnonzero((trace.arrival_s >= at_s) & (trace.arrival_s < at_s + seconds)).astype(np.int64)
    cut = trace.take(inside)
    output = np.maximum(LEAST_OUTPUT, (cut.output / scale.divisor).astype(np.int64))
    prompt = np.maximum(scale.least_prompt, (cut.prompt / scale.divisor).astype(np.int64))
    return replace(
        cut,
        arrival_s=cut.arrival_s - at_s,
        prompt=np.minimum(prompt, scale.context - output),
        output=output,
        duration_s=seconds,
    )


def lengths(scale: Scale) -> Iterator[tuple[int, int]]:
    """Tokens of prompts and answers for the calibration, without an end."""
    other = part(CALIBRATION_AT_S, 1000.0, scale)
    return cycle(zip(other.prompt.tolist(), other.output.tolist(), strict=True))


def at_load(trace: Trace, profile: Profile, slots: int, load: float, seed: int) -> Trace:
    """As much of the trace as keeps the simulated engine busy for a share `load` of the time: each request is kept by
    chance, or where the whole is too little, first becomes several within a second."""
    copies = 1
    while lone.busy_share(multiply(trace, copies, seed), profile, slots) < load:
        copies *= 2
    many = multiply(trace, copies, seed)
    low, high = 0.0, 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        share = lone.busy_share(thin(many, many.rate * middle, seed + 1), profile, slots)
        low, high = (middle, high) if share < load else (low, middle)
    return thin(many, many.rate * high, seed + 1)


def pieces(trace: Trace, count: int) -> list[Trace]:
    """So many parts of equal length, each from time 0 on."""
    length = trace.duration_s / count
    found = []
    for k in range(count):
        inside = np.flatnonzero((trace.arrival_s >= k * length) & (trace.arrival_s < (k + 1) * length)).astype(np.int64)
        part = trace.take(inside)
        found.append(replace(part, arrival_s=part.arrival_s - k * length, duration_s=length))
    return found


def in_turn(parts: Sequence[Trace], pause_s: float) -> Trace:
    """The parts one after the other, with a pause after each."""
    starts = np.cumsum([0.0, *(part.duration_s + pause_s for part in parts)])
    return Trace(
        parts[0].name,
        np.concatenate([part.arrival_s + at for part, at in zip(parts, starts, strict=False)]),
        np.concatenate([part.prompt for part in parts]),
        np.concatenate([part.output for part in parts]),
        float(starts[-1]),
    )


def words(vocabulary: Sequence[str], seed: str, count: int) -> str:
    """`count` words with a space before each: about so many tokens."""
    return "".join(f" {word}" for word in random.Random(seed).choices(vocabulary, k=max(1, count)))


def vocabulary(tokens: Sequence[str]) -> list[str]:
    """Words that are one token of their own, of a byte-level vocabulary."""
    found = [token[1:] for token in tokens if token.startswith("Ġ")]
    return sorted(word for word in found if word.isascii() and word.isalpha() and word.islower() and len(word) > 2)
