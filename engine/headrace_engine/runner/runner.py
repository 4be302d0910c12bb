"""The runner of one rank on the CPU: eager, one step at a time."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import torch
from torch import Tensor

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.core.plan import KvSpec, RowStep, StepPlan, StepResult
from headrace_engine.models.decoder import Decoder
from headrace_engine.runner.rows import Row, build
from headrace_engine.runner.sampler import Draw, logprobs, report, sample
from headrace_wire.protocol import TokenLogprob
from headrace_wire.reasons import Reason

log = logging.getLogger(__name__)


class Drawn(NamedTuple):
    """What a step brought for one row."""

    token: int | None  # None: the prompt goes on
    logprob: TokenLogprob | None = None  # if asked for
    prompt: list[TokenLogprob] = []  # if asked for: of the prompt tokens after the computed ones


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
        sampled = {row: drawn.token for row, drawn in tokens.items() if drawn.token is not None}
        for row, token in sampled.items():
            self._rows[row].append_token(token)
        return StepResult(
            number=plan.number,
            tokens={row: [token] for row, token in sampled.items()},
            logprobs={row: [drawn.logprob] for row, drawn in tokens.items() if drawn.logprob is not None},
            prompt_logprobs={row: drawn.prompt for row, drawn in tokens.items() if drawn.prompt},
            failed=failed,
            ms=(time.perf_counter() - began) * 1000.0,
        )

    def _compute_alone(self, steps: list[RowStep], failed: dict[int, Reason]) -> dict[int, Drawn]:
        """Writing KV twice is harmless: the same values go to the same slots."""
        tokens: dict[int, Drawn] = {}
        for step in steps:
            try:
                tokens |= self._compute([step])
            except Exception as error:
                log.exception("row failed alone", extra={"row": step.row})
                failed[step.row] = _reason(error)
        return tokens

    @torch.inference_mode()
    def _compute(self, steps: list[RowStep]) -> dict[int, Drawn]:
        """The sampled token by row."""
        batch = build(steps, self._rows)
        logits = self._model(batch.tokens, batch.positions, batch.meta, self._attention, self._layers)
        scored, logits = self._scored(steps, logits)
        found = {row: Drawn(None, prompt=entries) for row, entries in scored.items()}
        sampled = [step for step in steps if step.sample]
        if not sampled:
            return found
        draws = [self._draw(step) for step in sampled]
        tokens = sample(logits, draws)
        reported = logprobs(logits, draws, tokens)
        drawn = {step.row: Drawn(tokens[i], reported.get(i)) for i, step in enumerate(sampled)}
        return found | {row: one._replace(prompt=scored.get(row, [])) for row, one in drawn.items()}

    def _scored(self, steps: list[RowStep], logits: Tensor) -> tuple[dict[int, list[TokenLogprob]], Tensor]:
        """Logprobs of the prompt tokens that rows ask for, and the logits of the sampled tokens alone."""
        counts = [self._rows[step.row].scored(step) for step in steps]
        if not any(counts):
            return {}, logits
        found: dict[int, list[TokenLogprob]] = {}
        sampled: list[int] = []
        at = 0
        for step, count in zip(steps, counts, strict=True):
            if count:
                row = self._rows[step.row]
                following = row.tokens[step.start + 1 : step.start + 1 + count].tolist()
                found[step.row] = report(logits[at : at + count], following, row.sampling.prompt_logprobs or 0)
            at += count
            if step.sample:
                sampled.append(at)
                at += 1
        return found, logits[sampled]

    def _draw(self, step: RowStep) -> Draw:
        row = self._rows[step.row]
        known = step.start + step.count
        return Draw(row.sampling, known - row.prompt, row.tokens[:known], row.prompt, row.stop_ids)


def _reason(error: Exception) -> Reason:
    """Torch reports a failed allocation on the CPU as a RuntimeError."""
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    return Reason.OUT_OF_MEMORY if memory else Reason.INTERNAL
