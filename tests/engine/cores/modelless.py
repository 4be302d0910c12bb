"""`headrace-engine` with a core that has no model: all else is the engine's own, and it serves within a second or two.

A step takes as long as one of a slow model, so that a long answer lasts for seconds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace_engine import main
from headrace_engine.config import EngineConfig
from headrace_engine.core import process
from headrace_engine.core.plan import StepResult
from headrace_engine.fetch.validate import validate
from headrace_engine.runner.fake import FakeRunner, fake_kv
from headrace_wire.protocol import ModelInfo
from headrace_wire.shape import ModelShape

STEP_S = 0.01
PAGES = 256
CONTEXT = 2048


@dataclass
class SlowRunner(FakeRunner):
    """Takes its time."""

    def collect(self) -> StepResult:
        time.sleep(STEP_S)
        return super().collect()


@dataclass(frozen=True)
class Built:
    """What the core serves with, as `headrace_engine.runner.build` has it."""

    runner: FakeRunner
    model: ModelInfo
    shape: ModelShape
    memory: dict[str, int]


def build(config: EngineConfig) -> Built:
    """A runner that has no weights, for the model's own tokenizer and shape."""
    model = ModelInfo(name=config.served_name, max_tokens=CONTEXT, max_sequences=config.max_sequences)
    memory = {"page_bytes": 1, "pool_bytes": PAGES + 1, "pool_pages": PAGES, "weights_bytes": 0}
    return Built(SlowRunner(0, fake_kv(PAGES)), model, validate(Path(config.path)).shape, memory)


def run(config: EngineConfig, inbound: str, outbound: str) -> None:
    """The core's process, but for what imports torch."""
    instead: Any = ModuleType("headrace_engine.runner.build")
    instead.build = build
    sys.modules[instead.__name__] = instead
    process.run(config, inbound, outbound)


if __name__ == "__main__":
    process.run = run
    sys.exit(main.main())
