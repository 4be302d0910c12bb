"""A request in the discrete simulator, and how requests end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from headrace.bench.trace import Floats, Ints, Trace
from headrace.routing.ledger import Load


class Outcome(IntEnum):
    """How a request ended. OPEN: it has not."""

    OPEN = 0
    GOOD = 1
    LATE = 2
    ERROR = 3
    SHED = 4
    CANCELLED = 5


class Request:
    """One request on its way. Times in seconds of virtual time, lengths in tokens."""

    __slots__ = (
        "arrived", "avoid", "blocks", "cached", "context", "dispatched", "first", "generated", "index", "left", "load",
        "output", "pages", "place", "prompt", "queued", "service", "tenant", "tries",
    )  # fmt: skip

    def __init__(self, index: int, arrived: float, prompt: int, output: int, service: int):
        self.index = index
        self.arrived = arrived
        self.prompt = prompt
        self.output = output
        self.service = service  # index of its class
        self.left = prompt  # prompt tokens that are not prefilled
        self.cached = 0  # prompt tokens found in a prefix cache
        self.context = 0  # tokens whose KV exists while it is prefilled
        self.generated = 0  # output tokens that exist when it waits in an engine: after a preemption
        self.dispatched = -1.0  # when its replica was chosen
        self.first = -1.0  # when the first token came
        self.place = -1  # serial number of its replica; -1: none
        self.pages = 0  # that the gateway has counted
        self.queued = 0  # prompt tokens that the gateway still counts as not prefilled
        self.tenant = 0
        self.tries = 1
        self.avoid: tuple[int, ...] = ()  # replicas on which it has failed
        self.load: Load | None = None  # under the exact desk
        self.blocks: Ints | None = None


@dataclass(frozen=True)
class ServiceClass:
    """Targets of a class and its share of the requests."""

    name: str
    ttft_s: float
    tpot_s: float
    priority: int = 0
    share: float = 1.0
    max_queue_age_s: float | None = None  # None: half of ttft_s
    objective: float = 0.95


@dataclass(frozen=True)
class Clients:
    """How clients behave."""

    tenants: int = 4
    cancel_share: float = 0.0  # of the requests whose client leaves before the end
    cancel_after_s: float = 10.0  # mean time until then
    retries: int = 0  # after a refusal
    retry_after_s: float = 5.0  # mean time until a retry


@dataclass
class Ledger:
    """What became of every request: one entry per request of the trace, and per retry behind them."""

    arrived: Floats
    prompt: Ints
    output: Ints
    service: Ints
    tenant: Ints
    outcome: list[int]
    ttft: list[float]
    tpot: list[float]
    ended: list[float]
    retried: list[int] = field(default_factory=list)  # for each further entry, the request that it repeats
    ends: int = 0  # calls of `end`

    @classmethod
    def of(cls, trace: Trace, classes: tuple[ServiceClass, ...], clients: Clients, seed: int) -> Ledger:
        """Classes are drawn by their shares, tenants by a Zipf law (the n-th gets a share of 1/n), each by the seed."""
        random = np.random.default_rng(seed)
        count = len(trace)
        shares = np.array([c.share for c in classes])
        ranks = 1.0 / np.arange(1, clients.tenants + 1)
        return cls(
            trace.arrival_s,
            trace.prompt,
            trace.output,
            random.choice(len(classes), count, p=shares / shares.sum()).astype(np.int64),
            random.choice(clients.tenants, count, p=ranks / ranks.sum()).astype(np.int64),
            [0] * count,
            [-1.0] * count,
            [-1.0] * count,
            [-1.0] * count,
        )

    def again(self, original: int) -> int:
        """Room for a retry; its index."""
        self.retried.append(original)
        self.outcome.append(0)
        for column in (self.ttft, self.tpot, self.ended):
            column.append(-1.0)
        return len(self.outcome) - 1

    def end(self, index: int, outcome: Outcome, now: float) -> None:
        """Note the end of a request. Raises ValueError if it has ended already."""
        if self.outcome[index]:
            raise ValueError(f"request {index} ended twice")
        self.outcome[index] = outcome
        self.ended[index] = now
        self.ends += 1

    def count(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return self.outcome.count(outcome)
