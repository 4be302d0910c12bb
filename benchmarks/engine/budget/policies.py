"""The budgets that are compared."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.core.budget import Pace

ADAPTIVE_TOKENS = 2048  # most tokens of a step under the adaptive budget
SEQUENCES = 16


@dataclass(frozen=True)
class Policy:
    """How many prompt tokens a step takes, and when requests may join."""

    name: str
    tokens: int  # max_batch_tokens
    adaptive: bool = False
    targets: bool = True  # do requests carry the target between tokens?
    static: bool = False  # batches of what waits: nobody joins before the last of a batch has ended

    def pace(self) -> Pace | None:
        """A fresh one, that knows nothing yet."""
        return Pace() if self.adaptive else None


POLICIES = (
    Policy("adaptive", ADAPTIVE_TOKENS, adaptive=True),
    Policy("adaptive, no targets", ADAPTIVE_TOKENS, adaptive=True, targets=False),
    Policy("fixed 256", 256),
    Policy("fixed 512", 512),
    Policy("fixed 2048", 2048),
    Policy("static batches", SEQUENCES * 2048, static=True),
)
