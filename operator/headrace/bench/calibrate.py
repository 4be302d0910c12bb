"""Recorded engine steps → the coefficients of a profile, by least squares that knows no negative times.

A record is one line of JSON: `{"seconds": .., "sequences": n, "kvTokens": k, "prefill": [[tokens, context], ..]}`. Each
step weighs by the inverse of its time, so that errors count in percent. Every HELD_OUT-th record is kept out of the fit
(where there are enough of them) and gives the error that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.bench.profile import Profile
from headrace.bench.trace import Floats

HELD_OUT = 5
ENOUGH = 20  # records from where some are held out


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One recorded step."""

    seconds: float
    sequences: int = 0  # that decoded
    kv_tokens: int = 0  # that those held
    prefill: tuple[tuple[int, int], ...] = ()  # tokens and context of each prompt piece

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
    """Raises OSError, msgspec.ValidationError."""
    decoder = msgspec.json.Decoder(Step)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def fit(steps: Sequence[Step]) -> Fit:
    """Raises ValueError where there are too few steps for five coefficients."""
    usable = [step for step in steps if step.seconds > 0]
    held = [s for i, s in enumerate(usable) if i % HELD_OUT == HELD_OUT - 1] if len(usable) >= ENOUGH else []
    used = [s for i, s in enumerate(usable) if i % HELD_OUT != HELD_OUT - 1] if held else usable
    if len(used) < 5:
        raise ValueError(f"{len(used)} steps are too few for five coefficients")
    table = np.array([s.features for s in used])
    weights = 1.0 / np.array([s.seconds for s in used])
    found = _non_negative(table * weights[:, None])
    judged = held or used
    predicted = np.array([s.features for s in judged]) @ found
    actual = np.array([s.seconds for s in judged])
    error = 100.0 * float(np.mean(np.abs(predicted - actual) / actual))
    step, sequence, kv, prefill, pair = (float(value) for value in found)
    return Fit((step, sequence, kv, prefill, pair), error, len(held))


def _non_negative(table: Floats) -> Floats:
    """Least squares for the target 1 in every row; a coefficient that comes out negative is left out."""
    scale = np.maximum(np.abs(table).max(axis=0), 1e-300)
    target = np.ones(len(table))
    active = [i for i in range(table.shape[1]) if table[:, i].any()]
    while True:
        solved = np.linalg.lstsq(table[:, active] / scale[active], target, rcond=None)[0]
        if (solved >= 0).all() or len(active) == 1:
            break
        active.pop(int(np.argmin(solved)))
    found = np.zeros(table.shape[1])
    found[active] = np.maximum(0.0, solved) / scale[active]
    return found
