"""What runs the steps: a real model whose steps are timed, or a model of step times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.engine.budget.workload import CONTEXT, VOCAB

from headrace_engine.config import EngineConfig
from headrace_engine.core.budget import StepTimes, StepWork, work_of
from headrace_engine.core.plan import KvSpec, Runner, StepPlan, StepResult

PAGES = 256
SHAPE = {  # 4 million parameters, those of the built-in model but for the vocabulary
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2 * CONTEXT,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
PAGE_BYTES = 3 * 2 * 2 * 64 * 64 * 2  # layers, K and V, heads, tokens, head_dim, bfloat16


class Engine(Protocol):
    """Takes a step and says how long it took."""

    def step(self, plan: StepPlan) -> tuple[StepResult, float]:
        """The result, and seconds of the engine's own time."""
        ...


@dataclass
class Timed:
    """A real runner. Its time is the processor's, one thread: others on the machine cannot lengthen a step by taking
    turns, and what stands between steps of this script is not counted.
    """

    runner: Runner
    seen: list[tuple[StepWork, float]] = field(default_factory=list)
    clock: Callable[[], float] = time.process_time

    def step(self, plan: StepPlan) -> tuple[StepResult, float]:
        """Compute it."""
        began = self.clock()
        self.runner.launch(plan)
        result = self.runner.collect()
        took = self.clock() - began
        self.seen.append((work_of(plan), took))
        return result, took


@dataclass
class Modelled:
    """No model at all: every token is 1, and a step takes what a step-time model says times one of the factors."""

    times: StepTimes
    factors: list[float]
    dice: random.Random

    def step(self, plan: StepPlan) -> tuple[StepResult, float]:
        """Look up how long it takes."""
        tokens = {step.row: [1] for step in plan.steps if step.sample}
        return StepResult(number=plan.number, tokens=tokens), self.times.predict(work_of(plan)) * self.dice.choice(
            self.factors
        )


def real_runner(folder: Path, threads: int = 1) -> Runner:
    """The small model of SHAPE with random weights, through the engine's own loading."""
    from headrace_engine.models.random import write_checkpoint
    from headrace_engine.runner.build import build

    write_checkpoint(folder, SHAPE)
    config = EngineConfig(
        path=str(folder), served_name="budget", threads=threads, kv_cache_bytes=(PAGES + 1) * PAGE_BYTES
    )
    return build(config).runner


def modelled_kv() -> KvSpec:
    """A pool of the same size."""
    return KvSpec(pages=PAGES, groups=[], layout="modelled")
