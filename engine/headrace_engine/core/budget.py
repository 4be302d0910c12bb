"""How long a step takes, learnt from the engine's own steps, and how much prefill fits beside running streams.

The model is t = a + b · rows that decode + c · their tokens of context + d · prompt tokens + e · tokens that these
attend to, fitted by least squares of relative errors with no coefficient negative. What prompts attend to is no context
beside: both would grow alike while a prompt is read, and a fit cannot tell such two apart; streams alone would seem
slower with every chunk. Attention takes prompts in blocks that begin at every BLOCK tokens, and a part of one takes as
long as all of it. Steps with and without prompts are forgotten each at the pace of their own kind, so that long
decoding leaves what is known of prompts. Pure: times are arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace_engine.core.fit import Sums, fit
from headrace_engine.core.plan import StepPlan
from headrace_wire import protocol

FORGET = 0.99  # weight of an observation after one more step of its kind
LEAST_SECONDS = 1e-4  # a step is taken to last
LEAST_STEPS = 8  # observed before the fit is believed
STALE_STEPS = 4  # that a fit over many steps may leave out
FLOOR_TOKENS = 32  # prompt tokens that a step computes whatever the targets say: prompts never starve
PROBE_TOKENS = 64  # prompt tokens of a step beside streams as long as nothing is known of its time
# Without a target, a step with prompts takes this many times what its streams alone would take: a stream's gaps stay
# well below five times their median, and prompts get two thirds of the machine.
STRETCH = 3.0
MOST_BLOCKS = 1e9  # more is no limit
BLOCK = 64  # prompt tokens that attention takes together (BLOCK of attention/cpu.py)
_SCALES = (1.0, 16.0, 4096.0, 256.0, 4096.0 * 256.0)  # features are divided by these, so that they are of one size


@dataclass(frozen=True)
class StepWork:
    """What a step computes."""

    decodes: int  # rows with one token
    context: int  # tokens of context over the rows that decode
    prefill: int  # prompt tokens
    attended: float = 0.0  # tokens before them in their own sequences, over all prompt tokens in whole blocks

    def features(self) -> tuple[float, ...]:
        """Scaled, the constant first."""
        raw = (1.0, self.decodes, self.context, self.prefill, self.attended)
        return tuple(value / scale for value, scale in zip(raw, _SCALES, strict=True))


@dataclass(frozen=True)
class Streams:
    """Running sequences that decode, and the prompt that would be computed beside them."""

    rows: int = 0
    context: int = 0  # tokens
    target_s: float | None = None  # the strictest between two tokens; None: none of them has one
    depth: int = 0  # tokens of the next prompt that are computed already


def chunk_attends(start: int, count: int) -> float:
    """Tokens that a chunk's tokens attend to, summed over them, the blocks that it touches counted whole."""
    begun = start % BLOCK
    return -(-(begun + count) // BLOCK) * BLOCK * (start - begun + (begun + count) / 2)


def _whole_blocks(token: float, pair: float, spare: float) -> float:
    """Blocks of a prompt for which token · n + pair · n² / 2 takes at most `spare` (above 0); may be inf."""
    if pair * spare < 1e-6 * token * token:  # the square hardly counts, and its root would lose all digits
        count = spare / token
    else:
        count = (math.sqrt(token * token + 2.0 * pair * spare) - token) / pair if pair > 0.0 else math.inf
    return math.inf if count == math.inf else float(count // BLOCK)


def work_of(plan: StepPlan) -> StepWork:
    """What a plan computes; a prompt's chunk of one token counts as a row that decodes, as it takes hardly longer."""
    decodes, context, prefill, attended = 0, 0, 0, 0.0
    for step in plan.steps:
        if step.count == 1:
            decodes += 1
            context += step.start + 1
        else:
            prefill += step.count
            attended += chunk_attends(step.start, step.count)
    return StepWork(decodes, context, prefill, attended)


class StepTimes:
    """The fitted model."""

    def __init__(self) -> None:
        self._decodes = Sums(len(_SCALES), FORGET)  # of steps without prompts
        self._prompts = Sums(len(_SCALES), FORGET)
        self._fitted = [0.0] * len(_SCALES)  # seconds per scaled feature
        self._fitted_at = 0  # observations that it knows

    @property
    def known(self) -> bool:
        """Were enough steps seen, of both kinds?"""
        return self._decodes.count + self._prompts.count >= LEAST_STEPS and self._prompts.count > 1

    @property
    def told(self) -> protocol.StepTimes | None:
        """For others, in seconds; None: not known."""
        if not self.known:
            return None
        fixed, row, context, prompt, attended = (
            value / scale for value, scale in zip(self._theta, _SCALES, strict=True)
        )
        return protocol.StepTimes(
            fixed_s=fixed,
            sequence_s=row,
            context_token_s=context,
            prefill_token_s=prompt,
            attended_token_s=attended,
            steps=self._decodes.count + self._prompts.count,
        )

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work took `seconds`."""
        weight = 1.0 / max(seconds, LEAST_SECONDS)  # errors count by their share of the step
        sums = self._prompts if work.prefill else self._decodes
        sums.add([value * weight for value in work.features()])

    @property
    def _theta(self) -> list[float]:
        """Fitted when asked for; where many steps with prompts are known, some may have come since."""
        count = self._decodes.count + self._prompts.count
        if count - self._fitted_at > min(STALE_STEPS, self._prompts.count // LEAST_STEPS):
            self._fitted = fit((self._decodes, self._prompts))
            self._fitted_at = count
        return self._fitted

    def predict(self, work: StepWork) -> float:
        """Seconds, never negative."""
        return sum(a * b for a, b in zip(self._theta, work.features(), strict=True))

    def prefill_within(self, streams: Streams, seconds: float) -> float:
        """Prompt tokens that may be computed beside these streams so that the step takes at most `seconds`; may be inf.

        n tokens from depth s on, where a block begins, take d · n + e · b · (s + n / 2), b being n in whole blocks.
        From inside a block it is as if its first tokens were computed too, in no time.
        """
        pair, token = self._theta[4] / _SCALES[4], self._theta[3] / _SCALES[3]
        spare = seconds - self.predict(StepWork(streams.rows, streams.context, 0))
        if spare <= 0.0:
            return 0.0
        begun = streams.depth % BLOCK
        depth, spare = streams.depth - begun, spare + token * begun
        blocks = _whole_blocks(token + pair * depth, pair, spare)
        if not blocks < MOST_BLOCKS:
            return math.inf
        rows = BLOCK * (blocks + 1)  # and a part of the next one
        return max(0.0, BLOCK * blocks - begun, (spare - pair * rows * depth) / (token + pair * rows / 2) - begun)

    def prefill_alone(self, tokens: int) -> float:
        """Seconds that computing the first `tokens` of a prompt adds to a step; 0 while the model is not known.

        Their context is not counted: a step reads it too where they are found.
        """
        if not self.known:
            return 0.0
        return self.predict(StepWork(0, 0, tokens, chunk_attends(0, tokens))) - self.predict(StepWork(0, 0, 0))


class Pace:
    """The prefill share of a step: the most that keeps the strictest target of the streams that run.

    Where none of them has a target, the step may take `stretch` times what the streams alone would take (None: no
    limit). Without streams only the engine's own bound on tokens a step limits it. As long as the model is not known,
    steps beside streams are small: they are what it learns from.
    """

    def __init__(self, stretch: float | None = STRETCH, floor: int = FLOOR_TOKENS):
        self.times = StepTimes()
        self._stretch = stretch
        self._floor = floor

    def target_s(self, streams: Streams) -> float:
        """How long a step beside these streams may take."""
        if streams.target_s is not None:
            return streams.target_s
        if self._stretch is None:
            return math.inf
        return self._stretch * self.times.predict(StepWork(streams.rows, streams.context, 0))

    def share(self, streams: Streams, most: int) -> int:
        """Prompt tokens of the next step, up to `most`, at least the floor (or up to the end of a block that is begun)
        where that is allowed."""
        if not streams.rows:
            return most
        if not self.times.known:
            return min(most, PROBE_TOKENS)
        target = self.target_s(streams)
        if target == math.inf:
            return most
        floor = min(self._floor, BLOCK - streams.depth % BLOCK)  # not into a second block
        return int(min(most, max(floor, self.times.prefill_within(streams, target))))

    def rate(self, streams: Streams, most: int) -> float:
        """Tokens/s that a new prompt would get beside these streams; 0 = not yet known."""
        if not self.times.known:
            return 0.0
        tokens = self.share(streams, most)
        attended = chunk_attends(streams.depth, tokens)
        seconds = self.times.predict(StepWork(streams.rows, streams.context, tokens, attended))
        return tokens / seconds if seconds > 0 else 0.0
