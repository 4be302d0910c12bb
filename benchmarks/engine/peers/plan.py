"""What is measured in which order, and about how long it takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

PARTS = ("load", "gap", "prefix", "steps", "profile", "pool")
MOST_STARTS = 4  # of one server: three restarts

START_S = {"vllm": 50.0, "headrace": 10.0, "transformers": 10.0, "llama.cpp": 4.0}
"""From the command to the end of the warm-up, s: a first guess, on two cores."""
TOKENS_PER_S = {
    "headrace": {1: 50, 8: 220, 16: 290, 32: 350},
    "vllm": {1: 55, 8: 260, 16: 370, 32: 430},
    "transformers": {1: 35, 8: 150, 16: 200, 32: 240},
    "llama.cpp": {1: 55, 8: 120, 16: 150, 32: 160},
}
"""A first guess, replaced by what was measured as soon as it was."""
GAP_S, PREFIX_S, SAMPLE_S = 14.0, 6.0, 12.0  # of one life
STEPS_S, PROFILE_S, POOL_S = 90.0, 30.0, 130.0  # of one round of all engines, once, once


class Settings(msgspec.Struct, frozen=True):
    """What a folder of results is of; a run is resumed only with equal settings."""

    servers: tuple[str, ...]
    rounds: int
    starts: int  # lives of each server
    concurrency: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """One life of every server, beside each other."""

    number: int  # from 0
    rounds: range
    servers: tuple[str, ...]  # in the order in which they are started


def blocks(settings: Settings) -> list[Block]:
    """All lives in order: in each block of rounds every server lives once, and another one begins."""
    found = []
    per_start = -(-settings.rounds // settings.starts)
    for number in range(settings.starts):
        rounds = range(number * per_start, min(settings.rounds, (number + 1) * per_start))
        if rounds:
            found.append(Block(number, rounds, tuple(turned(settings.servers, number))))
    return found


def turned(servers: Sequence[str], number: int) -> list[str]:
    """The order of servers in a block, or of a round's cell: another one begins each."""
    at = number % len(servers)
    return [*servers[at:], *servers[:at]]


def cell_seconds(server: str, concurrency: int, tokens: int, measured: Mapping[tuple[str, int], float]) -> float:
    """Seconds of one closed loop of `tokens` output tokens: as measured, else guessed."""
    if (server, concurrency) in measured:
        return measured[server, concurrency]
    guesses = TOKENS_PER_S.get(server, TOKENS_PER_S["llama.cpp"])
    nearest = min(guesses, key=lambda known: abs(known - concurrency))
    return tokens / guesses[nearest]


def life_seconds(
    server: str, loops: Sequence[tuple[int, int]], parts: Sequence[str], measured: Mapping[tuple[str, int], float]
) -> float:
    """Seconds of one life; `loops`: concurrency and output tokens of each loop that is missing."""
    own = sum(cell_seconds(server, concurrency, tokens, measured) for concurrency, tokens in loops)
    extra = GAP_S * ("gap" in parts) + PREFIX_S * ("prefix" in parts) + SAMPLE_S * ("profile" in parts)
    return START_S.get(server, 10.0) + own + extra
