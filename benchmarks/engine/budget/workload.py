"""Two workloads of recorded arrivals and sizes, scaled down to a model that one processor can serve.

The traces come with the control plane's own benchmark, with their attribution (`headrace/bench/traces/README.md`).
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, replace

import numpy as np

from headrace.bench.packed import FOLDER, load
from headrace.bench.trace import Trace
from headrace_wire.protocol import PAGE_TOKENS

VOCAB = 4096
CONTEXT = 2048  # tokens; of the prompts at most MOST
LEAST, MOST = 256, 1792
CHAT, DOCUMENTS = 2000, 3600  # requests of the traces that are replayed first: prompts are shorter before


@dataclass(frozen=True)
class Request:
    """One of a workload."""

    name: str
    at: float  # s, from the start
    tokens: bytes  # int32
    output: int  # tokens

    @property
    def prompt(self) -> int:
        """Tokens."""
        return len(self.tokens) // 4


@dataclass(frozen=True)
class Workload:
    """Requests by arrival, and what they are."""

    name: str
    title: str
    requests: list[Request]

    @property
    def rate(self) -> float:
        """Requests/s."""
        return len(self.requests) / self.requests[-1].at

    def at_rate(self, rate: float) -> Workload:
        """The same arrivals, faster or slower."""
        factor = self.rate / rate
        return replace(self, requests=[replace(one, at=one.at * factor) for one in self.requests])


def conversation(count: int) -> Workload:
    """Azure's conversation service, 2023: sizes a quarter of the recorded ones; no prompt shares anything."""
    trace = _trace("azure_llm_2023_conv")
    dice = random.Random(1)
    requests = []
    for i in range(CHAT, CHAT + count):
        size = min(MOST, max(4, int(trace.prompt[i]) // 4))
        tokens = array("i", [dice.randrange(3, VOCAB) for _ in range(size)])
        output = min(CONTEXT - size, max(1, int(trace.output[i]) // 4))
        requests.append(Request(f"c{i}", float(trace.arrival_s[i] - trace.arrival_s[CHAT]), tokens.tobytes(), output))
    return Workload("conversation", "conversation (Azure 2023, sizes / 4)", requests)


def retrieval(count: int) -> Workload:
    """Mooncake's synthetic mix, 2025: long prompts that begin with shared documents, short answers.

    Prompts are an eighth of the recorded ones, so that a recorded block of 512 tokens is one of 64 here and is shared
    by whom the trace says; those of fewer than LEAST tokens (the mix holds chats too) and those that are still too long
    are left out. Answers are half of the recorded ones.
    """
    trace = _trace("mooncake_fast25_synthetic")
    if trace.blocks is None:
        raise ValueError("the trace has no blocks")
    sizes = trace.prompt // 8
    fitting = np.flatnonzero((sizes >= LEAST) & (sizes <= MOST))
    chosen = fitting[fitting >= DOCUMENTS][:count]
    requests = []
    for i in chosen.tolist():
        size = max(4, int(trace.prompt[i]) // 8)
        tokens = array("i")
        for block in trace.blocks.of(i).tolist():
            dice = random.Random(block)
            tokens.extend(dice.randrange(3, VOCAB) for _ in range(PAGE_TOKENS))
        output = min(CONTEXT - size, 256, max(1, int(trace.output[i]) // 2))
        at = float(trace.arrival_s[i] - trace.arrival_s[chosen[0]])
        requests.append(Request(f"r{i}", at, tokens[:size].tobytes(), output))
    return Workload("retrieval", "retrieval (Mooncake synthetic 2025, prompts / 8, answers / 2)", requests)


def _trace(name: str) -> Trace:
    trace = load(FOLDER / f"{name}.npz")
    if not isinstance(trace, Trace):
        raise TypeError(f"{name} has no arrivals")
    return trace
