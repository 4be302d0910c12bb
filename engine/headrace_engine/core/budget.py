"""How long a step takes, learnt from the engine's own steps, and how much prefill fits beside running streams.

The model is t = a + b · rows that decode + c · tokens of context + d · prompt tokens, fitted by recursive least squares
of relative errors, which forget slowly; where noise makes a coefficient negative it counts as zero. Pure: times are
arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace_engine.core.plan import StepPlan
from headrace_engine.core.sequence import Sequence

FORGET = 0.995  # weight of an observation after one more step
LEAST_SECONDS = 1e-4  # a step is taken to last
LEAST_STEPS = 8  # observed before the fit is believed
FLOOR_TOKENS = 32  # prompt tokens that a step computes whatever the targets say: prompts never starve
_SCALES = (1.0, 16.0, 4096.0, 256.0)  # features are divided by these, so that they are of one size
_DOUBT = 1e3  # about a coefficient of which nothing is known, in variances of one observation
_RENEWED_DOUBT = 0.01  # up to which forgetting lets doubt grow again, about what steps no longer show


@dataclass(frozen=True)
class StepWork:
    """What a step computes."""

    decodes: int  # rows with one token
    context: int  # tokens of context over all rows
    prefill: int  # prompt tokens

    def features(self) -> tuple[float, ...]:
        """Scaled, the constant first."""
        raw = (1.0, self.decodes, self.context, self.prefill)
        return tuple(value / scale for value, scale in zip(raw, _SCALES, strict=True))


def work_of(plan: StepPlan) -> StepWork:
    """What a plan computes; a prompt's chunk of one token counts as a row that decodes, which it is to the runner."""
    context = sum(step.start + step.count for step in plan.steps)
    chunks = [step.count for step in plan.steps if step.count > 1]
    return StepWork(len(plan.steps) - len(chunks), context, sum(chunks))


def beside(streams: Iterable[Sequence]) -> tuple[int, int, float | None]:
    """Rows, tokens of context and strictest target (s between tokens, None: none has one) of running streams."""
    rows, context, target = 0, 0, float("inf")
    for seq in streams:
        rows += 1
        context += seq.computed + 1
        if seq.submit.tpot_ms is not None:
            target = min(target, seq.submit.tpot_ms / 1000.0)
    return rows, context, target if target < float("inf") else None


class StepTimes:
    """The fitted model."""

    def __init__(self) -> None:
        size = len(_SCALES)
        self.steps = 0  # observed
        self.prefills = 0  # of them, with prompt tokens
        self._theta = [0.0] * size  # seconds per scaled feature
        self._doubt = [[_DOUBT if i == j else 0.0 for j in range(size)] for i in range(size)]

    @property
    def known(self) -> bool:
        """Were enough steps seen, of both kinds?"""
        return self.steps >= LEAST_STEPS and self.prefills > 1

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work took `seconds`."""
        self.steps += 1
        self.prefills += work.prefill > 0
        weight = 1.0 / max(seconds, LEAST_SECONDS)  # errors count by their share of the step
        x = [value * weight for value in work.features()]
        px = [sum(a * b for a, b in zip(row, x, strict=True)) for row in self._doubt]
        forget = FORGET if max(row[i] for i, row in enumerate(self._doubt)) < _RENEWED_DOUBT else 1.0
        scale = forget + sum(a * b for a, b in zip(x, px, strict=True))
        gain = [value / scale for value in px]
        error = seconds * weight - sum(a * b for a, b in zip(self._theta, x, strict=True))
        self._theta = [old + g * error for old, g in zip(self._theta, gain, strict=True)]
        for i, row in enumerate(self._doubt):
            for j in range(len(row)):
                row[j] = (row[j] - gain[i] * px[j]) / forget

    def predict(self, work: StepWork) -> float:
        """Seconds, never negative."""
        return sum(max(0.0, a) * b for a, b in zip(self._theta, work.features(), strict=True))

    def prefill_within(self, decodes: int, context: int, seconds: float) -> float:
        """Prompt tokens that may be computed beside these rows so that the step takes at most `seconds`; may be inf."""
        per_token = self._theta[3] / _SCALES[3]
        spare = seconds - self.predict(StepWork(decodes, context, 0))
        if per_token <= 0.0:
            return float("inf") if spare >= 0 else 0.0
        return max(0.0, spare / per_token)


class Pace:
    """The prefill share of a step: the most that keeps the strictest target of the streams that run.

    Without streams, without a target among them or before the model is known, the engine's own bound on tokens a step
    is the only one (`default_s` None), or the target is `default_s`.
    """

    def __init__(self, default_s: float | None = None, floor: int = FLOOR_TOKENS):
        self.times = StepTimes()
        self._default_s = default_s
        self._floor = floor

    def share(self, decodes: int, context: int, target_s: float | None, most: int) -> int:
        """Prompt tokens of the next step, up to `most`, at least the floor where that is allowed."""
        target = self._default_s if target_s is None else target_s
        if not decodes or target is None or not self.times.known:
            return most
        fitting = self.times.prefill_within(decodes, context, target)
        return int(min(most, max(self._floor, fitting)))

    def rate(self, decodes: int, context: int, target_s: float | None, most: int) -> float:
        """Tokens/s that a new prompt would get beside these streams; 0 = not yet known."""
        if not self.times.known:
            return 0.0
        tokens = self.share(decodes, context, target_s, most)
        seconds = self.times.predict(StepWork(decodes, context, tokens))
        return tokens / seconds if seconds > 0 else 0.0
