"""What the scheduler tells the runner in each step, and what comes back: plain values, diffs only.

Tokens and pages of a row travel once; the runner keeps them until the row is dropped. Row numbers are never used twice,
so a late result cannot be taken for that of another request.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace_wire.protocol import KvGroup, Sampling, TokenLogprob
from headrace_wire.reasons import Reason


class NewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that enters the running batch, afresh or after a preemption."""

    row: int
    tokens: bytes  # all known token ids, prompt and output, little-endian int32
    prompt: int  # tokens of the prompt: the rest are output
    pages: list[int]  # block table: page i holds tokens 64 i to 64 i + 63; page 0 is the dummy and never here
    sampling: Sampling
    stop_ids: list[int] = []  # not drawn before `sampling.min_tokens` of output; empty where that is 0


class RowStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Compute `count` tokens of a row from position `start` on; with `sample`, draw the next token after the last."""

    row: int
    start: int
    count: int
    sample: bool
    pages: list[int] = []  # appended to the row's block table before the step


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One step. Rows with one token come first. `drop` is applied before `new`."""

    number: int
    new: list[NewRow]
    steps: list[RowStep]
    drop: list[int]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step brought: the sampled tokens by row; rows that failed alone, with the reason."""

    number: int
    tokens: dict[int, list[int]]
    logprobs: dict[int, list[TokenLogprob]] = {}  # of rows that ask for them, one a token
    # Of rows that ask for them: one for each prompt token that follows a computed one, in order.
    prompt_logprobs: dict[int, list[TokenLogprob]] = {}
    failed: dict[int, Reason] = {}
    ms: float = 0.0  # the step's own time, without waiting for earlier steps


class KvSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The pool of KV pages that a runner holds."""

    pages: int  # usable pages, numbered 1 to `pages`; page 0 is the dummy
    groups: list[KvGroup]
    layout: str  # name of the backend's layout and dtype, part of the cache root


class Runner(Protocol):
    """Runs steps in order. At most `lag` + 1 are in flight: `lag` 0 means that a step is collected before the next."""

    lag: int
    kv: KvSpec

    def launch(self, plan: StepPlan) -> None:
        """Begin a step."""

    def collect(self) -> StepResult:
        """Wait for the oldest step in flight."""
        ...
