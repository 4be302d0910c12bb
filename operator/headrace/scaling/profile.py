"""What one replica takes by its engine's own step times, before traffic has taught it. Pure; times in seconds.

A step takes a fixed time and more for each sequence, each token of context and each prompt token in it. So a request of
P prompt tokens and O of output takes work w of a replica, the fixed part of steps apart. A replica that gets r
requests/s spends the share rho = r w of its time on tokens; the rest pays the fixed part of steps. A step then takes
T = fixed / (1 - rho), which is every sequence's time per output token: so a TPOT target bounds rho. So do the slots and
the KV pool through the number in flight, by Little's law.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace_wire.protocol import StepTimes

TPOT_SHARE = 0.9  # of its target that a step may take at the load which counts as the capacity
LEAST_RHO = 0.05
HALF_MIX_S = 600.0  # of answers, after which one counts half


class Answers(msgspec.Struct, frozen=True):
    """Requests that were answered, and their tokens; older ones count less."""

    requests: float = 0.0
    prompt: float = 0.0  # tokens
    cached: float = 0.0
    output: float = 0.0
    attended: float = 0.0  # tokens that computed prompt tokens attend to

    def after(self, more: Iterable[Answers], span_s: float) -> Answers:
        """With what was answered in the last seconds. Time without answers makes none forgotten."""
        new = [msgspec.structs.astuple(m) for m in more if m.requests > 0]
        if not new:
            return self
        keep = 0.5 ** (span_s / HALF_MIX_S)
        return Answers(*(keep * a + sum(b) for a, *b in zip(msgspec.structs.astuple(self), *new, strict=True)))


class Mix(msgspec.Struct, frozen=True):
    """The mean request."""

    prompt: float  # tokens
    output: float  # tokens
    work_s: float  # of a replica, the fixed part of steps apart
    prefill_s: float  # of it, for the prompt


class Limits(msgspec.Struct, frozen=True):
    """What bounds a replica beside its time."""

    sequences: float
    kv_tokens: float
    tpot_s: float


class Steady(msgspec.Struct, frozen=True):
    """The largest load at which a step takes at most 0.9 of the TPOT target, and slots and KV suffice."""

    rho: float  # share of the time that is spent on tokens
    step_s: float
    in_flight: float  # requests


def mix_of(answers: Answers, times: StepTimes) -> Mix:
    """The mean of what was answered, on an engine of these step times. At least one request."""
    n = answers.requests
    prompt, output = answers.prompt / n, answers.output / n
    fresh = times.prefill_token_s * (answers.prompt - answers.cached) / n
    prefill = fresh + times.attended_token_s * answers.attended / n
    token = times.sequence_s + times.context_token_s * (prompt + output / 2)
    return Mix(prompt, output, prefill + token * output, prefill)


def steady(fixed_s: float, mix: Mix, limits: Limits) -> Steady:
    """The full load of a replica whose steps take at least `fixed_s`; work, tokens and limits above 0."""
    rho = max(LEAST_RHO, 1.0 - fixed_s / (TPOT_SHARE * limits.tpot_s))
    held = mix.prompt + mix.output / 2
    residence = mix.output * fixed_s + mix.prefill_s  # times 1 / (1 - rho)
    for most in (limits.sequences, limits.kv_tokens / held):
        rho = min(rho, most * mix.work_s / (most * mix.work_s + residence))
    return Steady(rho, fixed_s / (1.0 - rho), rho / mix.work_s * residence / (1.0 - rho))
