"""Recorded engine steps → the coefficients of a profile, by least squares that knows no negative times.

A record is one line of JSON, as `headrace-engine serve --record-steps` writes it: `{"seconds": .., "between": ..,
"sequences": n, "kvTokens": k, "prefill": [[tokens, context], ..]}`. What lies between two steps is part of the step
that follows; where it is not known, the median is taken. Each step weighs by the inverse of the time that the fit gives
it, so that errors count in percent and the mean is met, not what lies below it. Every HELD_OUT-th record is kept out of
the fit (where there are enough of them) and gives the error that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from headrace.bench.profile import Profile
from headrace.bench.replica import LEAST_PREFILL
from headrace.bench.trace import Floats

HELD_OUT = 5
SHARES = 50  # into which steps are parted by how much longer they take than the fit gives
ROUNDS = 3  # in which the weights settle
DOUBTFUL_PERCENT = 50.0  # mean error
ENOUGH = 20  # records from where some are held out


Count = Annotated[int, msgspec.Meta(ge=0)]


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One recorded step."""

    seconds: Annotated[float, msgspec.Meta(gt=0)]
    between: Annotated[float, msgspec.Meta(ge=0)] | None = None  # since the end of the step before; None: not known
    sequences: Count = 0  # that decoded
    kv_tokens: Count = 0  # that those held
    prefill: tuple[tuple[Count, Count], ...] = ()  # tokens and context of each prompt piece

    @property
    def features(self) -> tuple[float, ...]:
        """What the five coefficients multiply."""
        tokens = sum(t for t, _ in self.prefill)
        return (
            1.0,
            float(self.sequences),
            float(self.kv_tokens),
            float(tokens),
            float(sum(t * (2 * c + t) for t, c in self.prefill)),
        )


class Fit(msgspec.Struct, frozen=True):
    """Coefficients in the order of `Step.features`, and the mean error in percent."""

    coefficients: tuple[float, float, float, float, float]
    residual_percent: float
    held_out: int  # records behind that error; 0: it is the fit's own
    records: int  # those held out among them
    told: int = 5  # coefficients that the steps can tell apart

    @property
    def doubt(self) -> str:
        """Why the profile should not be trusted; empty: nothing is known against it."""
        if self.told < len(self.coefficients):
            return f"the steps tell only {self.told} of {len(self.coefficients)} coefficients apart: record more kinds"
        if self.residual_percent > DOUBTFUL_PERCENT:
            return f"the mean error is {self.residual_percent:.0f} %: these are not the times of one engine"
        return ""

    def about(self, source: str, like: Profile) -> str:
        """What a profile of these times was made of; `source`: the name of the steps' file."""
        error = f"{self.held_out} of them held out for the error" if self.held_out else "the error is the fit's own"
        return (
            f"Times of steps fitted to {self.records} recorded steps in {source} (`headrace bench calibrate`), "
            f"{error}. All else is taken from the profile {like.name}."
        )

    def profile(self, like: Profile) -> Profile:
        """The same engine with these times."""
        step, sequence, kv, prefill, pair = self.coefficients
        return msgspec.structs.replace(
            like,
            step_seconds=step,
            per_sequence_seconds=sequence,
            per_kv_token_seconds=kv,
            per_prefill_token_seconds=prefill,
            per_prefill_pair_seconds=pair,
            residual_percent=round(self.residual_percent, 1),
        )


def read(path: Path) -> list[Step]:
    """Raises OSError, and ValueError with the file and the line."""
    decoder, steps = msgspec.json.Decoder(Step), []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                step = decoder.decode(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not step.sequences and not any(tokens for tokens, _ in step.prefill):
                raise ValueError(f"{path}, line {number}: a step with neither sequences nor prefill")
            steps.append(step)
    return steps


def fit(steps: Sequence[Step]) -> Fit:
    """Raises ValueError where there are too few steps for five coefficients."""
    usable = whole(steps)
    held = [s for i, s in enumerate(usable) if i % HELD_OUT == HELD_OUT - 1] if len(usable) >= ENOUGH else []
    used = [s for i, s in enumerate(usable) if i % HELD_OUT != HELD_OUT - 1] if held else usable
    if len(used) < 5:
        raise ValueError(f"{len(used)} steps are too few for five coefficients")
    table, took = np.array([s.features for s in used]), np.array([s.seconds for s in used])
    found = _non_negative(table / took[:, None], np.ones(len(used)))
    for _ in range(ROUNDS):
        fitted = np.maximum(table @ found, took.min() / 2)
        found = _non_negative(table / fitted[:, None], took / fitted)
    judged = held or used
    predicted = np.array([s.features for s in judged]) @ found
    actual = np.array([s.seconds for s in judged])
    error = 100.0 * float(np.mean(np.abs(predicted - actual) / actual))
    step, sequence, kv, prefill, pair = (float(value) for value in found)
    told = int(np.linalg.matrix_rank(table / np.maximum(table.max(axis=0), 1e-300)))
    return Fit((step, sequence, kv, prefill, pair), error, len(held), len(usable), told)


def whole(steps: Sequence[Step]) -> list[Step]:
    """The same steps with what lies between them as part of their seconds."""
    known = [step.between for step in steps if step.between is not None]
    usual = float(np.median(known)) if known else 0.0
    return [
        msgspec.structs.replace(s, seconds=s.seconds + (usual if s.between is None else s.between), between=None)
        for s in steps
    ]


def error_percent(steps: Sequence[Step], profile: Profile) -> float:
    """Mean error of a profile on steps that it was not fitted to."""
    judged = whole(steps)
    predicted = np.array([s.features for s in judged]) @ np.array(_coefficients(profile))
    actual = np.array([s.seconds for s in judged])
    return 100.0 * float(np.mean(np.abs(predicted - actual) / actual))


def drift(steps: Sequence[Step], profile: Profile) -> float:
    """Seconds that these steps took over those that the profile gives them: far from 1, the machine has changed."""
    judged = whole(steps)
    predicted = np.array([s.features for s in judged]) @ np.array(_coefficients(profile))
    return sum(s.seconds for s in judged) / max(float(predicted.sum()), 1e-12)


def _coefficients(profile: Profile) -> tuple[float, ...]:
    return (
        profile.step_seconds,
        profile.per_sequence_seconds,
        profile.per_kv_token_seconds,
        profile.per_prefill_token_seconds,
        profile.per_prefill_pair_seconds,
    )


def stretch(steps: Sequence[Step], profile: Profile) -> float:
    """How much longer than their streams alone the engine lets steps with prompts last, by its own choice: the median
    over those whose prompt goes on in the next step though the step had room for it. 0 where there are none."""
    found = []
    coefficients = np.array(_coefficients(profile))
    for step, following in pairwise(steps):
        tokens = sum(t for t, _ in step.prefill)
        begun = {c for _, c in following.prefill}
        goes_on = any(c + t in begun for t, c in step.prefill)
        if not step.sequences or tokens <= LEAST_PREFILL or not goes_on:
            continue
        if tokens + step.sequences < profile.max_batch_tokens:
            alone = msgspec.structs.replace(step, prefill=())
            found.append(float(np.dot(step.features, coefficients) / np.dot(alone.features, coefficients)))
    return float(np.median(found)) if found else 0.0


def scatter(steps: Sequence[Step], profile: Profile) -> tuple[float, ...]:
    """Steps' times over those that the profile gives, rising: the means of equal shares of the steps, so that the mean
    of these is that of all."""
    judged = whole(steps)
    ratios = np.array([s.seconds for s in judged]) / (
        np.array([s.features for s in judged]) @ np.array(_coefficients(profile))
    )
    return tuple(round(float(part.mean()), 4) for part in np.array_split(np.sort(ratios), SHARES) if len(part))


def overhead(prompts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """What a request takes outside the engine's steps: a constant and a part for each prompt token.

    Neither is negative; least squares of the errors in percent. `seconds`: time to first token less the steps that it
    took, alone. Raises ValueError without any.
    """
    if not prompts:
        raise ValueError("no requests from which the time outside the steps could be learnt")
    table = np.column_stack((np.ones(len(prompts)), np.array(prompts, dtype=np.float64)))
    scale = np.maximum(np.array(seconds), 1e-9)
    constant, token = _non_negative(table / scale[:, None], np.ones(len(prompts)))
    return float(constant), float(token)


def _non_negative(table: Floats, target: Floats) -> Floats:
    """Least squares; a coefficient that comes out negative is left out."""
    scale = np.maximum(np.abs(table).max(axis=0), 1e-300)
    active = [i for i in range(table.shape[1]) if table[:, i].any()]
    while True:
        solved = np.linalg.lstsq(table[:, active] / scale[active], target, rcond=None)[0]
        if (solved >= 0).all() or len(active) == 1:
            break
        active.pop(int(np.argmin(solved)))
    found = np.zeros(table.shape[1])
    found[active] = np.maximum(0.0, solved) / scale[active]
    return found
