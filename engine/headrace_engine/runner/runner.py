"""The runner of one rank on the CPU: eager, one step at a time."""

from __future__ import annotations

import logging
import time

import torch

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.core.plan import KvSpec, RowStep, StepPlan, StepResult
from headrace_engine.models.decoder import Decoder
from headrace_engine.runner.rows import Row, build
from headrace_engine.runner.sampler import Draw, sample
from headrace_wire.reasons import Reason

log = logging.getLogger(__name__)


class TorchRunner:
    """Computes a step when it is collected, so nothing is ever in flight beside the scheduler."""

    lag = 0

    def __init__(self, model: Decoder, attention: Attention, kv: KvSpec, layers: list[LayerKv]):
        self.kv = kv
        self._model = model
        self._attention = attention
        self._layers = layers
        self._rows: dict[int, Row] = {}
        self._plan: StepPlan | None = None

    def launch(self, plan: StepPlan) -> None:
        """Bring the batch up to date."""
        if self._plan is not None:
            raise RuntimeError(f"step {plan.number} launched while step {self._plan.number} is not collected")
        for row in plan.drop:
            self._rows.pop(row, None)
        for new in plan.new:
            self._rows[new.row] = Row(new)
        for step in plan.steps:
            if step.pages:
                self._rows[step.row].append_pages(step.pages)
        self._plan = plan

    def collect(self) -> StepResult:
        """Compute the step. Where that fails, each row is tried alone, so that only the one at fault ends."""
        plan, self._plan = self._plan, None
        if plan is None:
            raise RuntimeError("no step is in flight")
        began = time.perf_counter()
        failed: dict[int, Reason] = {}
        try:
            tokens = self._compute(plan.steps)
        except Exception:
            log.exception("step failed", extra={"step": plan.number, "rows": len(plan.steps)})
            tokens = self._compute_alone(plan.steps, failed)
        for row, token in tokens.items():
            self._rows[row].append_token(token)
        return StepResult(
            number=plan.number,
            tokens={row: [token] for row, token in tokens.items()},
            failed=failed,
            ms=(time.perf_counter() - began) * 1000.0,
        )

    def _compute_alone(self, steps: list[RowStep], failed: dict[int, Reason]) -> dict[int, int]:
        """Writing KV twice is harmless: the same values go to the same slots."""
        tokens: dict[int, int] = {}
        for step in steps:
            try:
                tokens |= self._compute([step])
            except Exception as error:
                log.exception("row failed alone", extra={"row": step.row})
                failed[step.row] = _reason(error)
        return tokens

    @torch.inference_mode()
    def _compute(self, steps: list[RowStep]) -> dict[int, int]:
        """The sampled token by row."""
        batch = build(steps, self._rows)
        logits = self._model(batch.tokens, batch.positions, batch.meta, self._attention, self._layers)
        sampled = [step for step in steps if step.sample]
        if not sampled:
            return {}
        draws = [self._draw(step) for step in sampled]
        return {step.row: token for step, token in zip(sampled, sample(logits, draws), strict=True)}

    def _draw(self, step: RowStep) -> Draw:
        row = self._rows[step.row]
        return Draw(row.sampling, step.start + step.count - row.prompt)


def _reason(error: Exception) -> Reason:
    """Torch reports a failed allocation on the CPU as a RuntimeError."""
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    return Reason.OUT_OF_MEMORY if memory else Reason.INTERNAL
