"""What one replica takes by what its engine has measured of itself: known before traffic has taught it. Pure.

Engines are believed as far as their figures can be: NaN, negative, zero and huge ones count as unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from headrace.scaling.capacity import Capacity
from headrace.scaling.profile import LEAST_RHO, TPOT_SHARE, Answers, Limits, mix_of, steady
from headrace.scaling.types import EngineSample
from headrace_wire.protocol import StepTimes

LEAST_ANSWERED = 20  # requests that tell the mix
MOST_STEP_S = 60.0  # that any part of a step's time may be
LEAST_PER_SECOND, MOST_PER_SECOND = 1e-5, 1e6
PARTS = ("fixed_s", "sequence_s", "context_token_s", "prefill_token_s", "attended_token_s")


def by_step_times(engines: Sequence[EngineSample], answers: Answers, slots: int, tpot_s: float | None) -> Capacity:
    """What one replica takes: the lower median over the engines whose step times can be."""
    told = Counter((e.step_times, e.total_pages * e.page_tokens) for e in engines if e.step_times is not None)
    if not told:
        return Capacity(None, "")  # engines of before
    if tpot_s is None or not 0 < tpot_s < math.inf or slots <= 0:
        return Capacity(None, "no class has a target for the time between tokens")
    if answers.requests < LEAST_ANSWERED:
        return Capacity(None, f"{answers.requests:.0f} of {LEAST_ANSWERED} answers were seen to tell tokens from")
    rates: list[float] = []
    why = ""
    for (times, kv_tokens), count in told.items():
        rate = None if times is None else _rate(times, answers, Limits(float(slots), float(kv_tokens), tpot_s))
        if isinstance(rate, float):
            rates += [rate] * count
        else:
            why = why or str(rate)
    if not rates:
        return Capacity(None, why)
    rate = sorted(rates)[(len(rates) - 1) // 2]
    mean = f"{answers.prompt / answers.requests:.0f} + {answers.output / answers.requests:.0f} tokens"
    of = "the engine's" if len(rates) == 1 else f"the median of {len(rates)} engines'"
    return Capacity(rate, f"{rate:.3g} requests/s by {of} step times, {mean} each, TPOT {1000 * tpot_s:g} ms", False)


def _rate(times: StepTimes, answers: Answers, limits: Limits) -> float | str | None:
    """Requests/s; or why these times cannot be, or say nothing."""
    for name in PARTS:
        value = getattr(times, name)
        if not 0 <= value <= MOST_STEP_S:
            return f"an engine's {name} of {value:g} cannot be"
    mix = mix_of(answers, times)
    if not (times.fixed_s > 0 and mix.prompt > 0 and mix.output > 0 and mix.work_s > 0 and limits.kv_tokens > 0):
        return "an engine's step times or pool are zero"
    if times.fixed_s > (1.0 - LEAST_RHO) * TPOT_SHARE * limits.tpot_s:
        return f"a step takes {1000 * times.fixed_s:.3g} ms alone, of {1000 * limits.tpot_s:g} ms between tokens"
    rate = steady(times.fixed_s, mix, limits).rho / mix.work_s
    return rate if LEAST_PER_SECOND <= rate <= MOST_PER_SECOND else f"an engine's {rate:.3g} requests/s cannot be"
