"""What one engine step costs, and what follows for a replica's capacity. Profiles are data (`profiles/*.json`).

A step with n decoding sequences that hold k tokens of KV, and with prompt pieces of p tokens at context x, takes
    step + sequence * n + kv * k + prefill * sum(p) + pair * sum(p * (2 x + p))          [seconds]
so that a whole prompt of P tokens costs prefill * P + pair * P^2, however it is cut.

The steady state that follows is `headrace.scaling.profile`, which the operator uses, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from headrace.bench import builtin
from headrace.bench.trace import Floats, Ints
from headrace.scaling import profile as scaling
from headrace_wire.protocol import StepTimes

FOLDER = builtin.PROFILES
STEPS = 1000  # that an engine's fit is said to rest on


Seconds = Annotated[float, msgspec.Meta(ge=0, le=60)]
Ratio = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One engine on one kind of accelerator. Times in seconds."""

    name: str
    about: str = ""
    step_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)]
    per_sequence_seconds: Seconds
    per_kv_token_seconds: Seconds
    per_prefill_token_seconds: Seconds
    per_prefill_pair_seconds: Seconds = 0.0
    kv_tokens: Count
    page_tokens: Count = 64
    max_sequences: Count
    max_batch_tokens: Count
    residual_percent: Ratio = 0.0  # mean error on held-out steps; 0 = not fitted from steps
    prefill_stretch: Ratio = 0.0  # beside sequences that decode, of what these alone take; 0: no such bound
    request_seconds: Seconds = 0.0  # of a request outside the engine's steps, on the way there and back
    request_token_seconds: Seconds = 0.0  # and for each of its prompt tokens
    scatter: tuple[Ratio, ...] = ()  # ratios of steps' times to these, of equal shares of the steps; none: exact

    @property
    def step_times(self) -> StepTimes:
        """As an engine tells them in its state."""
        return StepTimes(
            fixed_s=self.step_seconds,
            sequence_s=self.per_sequence_seconds,
            context_token_s=self.per_kv_token_seconds,
            prefill_token_s=self.per_prefill_token_seconds,
            attended_token_s=2 * self.per_prefill_pair_seconds,
            steps=STEPS,
        )

    def prefill_s(self, prompt: Floats | Ints | float) -> Floats:
        """Seconds that prompts take on an engine of their own, the fixed part of steps apart."""
        tokens = np.asarray(prompt, dtype=np.float64)
        return self.per_prefill_token_seconds * tokens + self.per_prefill_pair_seconds * tokens * tokens

    def prefill_within(self, seconds: float, context: int) -> int:
        """Prompt tokens that take at most `seconds` behind `context` tokens of their own."""
        each = self.per_prefill_token_seconds + 2 * self.per_prefill_pair_seconds * context
        root = math.sqrt(each * each + 4 * self.per_prefill_pair_seconds * seconds)
        return int(2 * seconds / max(each + root, 1e-12) + 1e-9)

    def work_s(self, prompt: Ints, output: Ints) -> Floats:
        """Seconds of a replica that each request takes, the fixed part of steps apart."""
        prompt_f, output_f = prompt.astype(np.float64), output.astype(np.float64)
        token = self.per_sequence_seconds + self.per_kv_token_seconds * (prompt_f + output_f / 2)
        return np.asarray(self.prefill_s(prompt_f) + token * output_f)


@dataclass(frozen=True)
class Mix:
    """The mean request of a workload."""

    prompt: float  # tokens
    output: float  # tokens
    work_s: float  # seconds of a replica
    prefill_s: float
    prefill_p99_s: float

    @classmethod
    def of(cls, profile: Profile, prompt: Ints, output: Ints) -> Mix:
        """The mean over requests."""
        prefill = profile.prefill_s(prompt)
        return cls(
            float(prompt.mean()),
            float(output.mean()),
            float(profile.work_s(prompt, output).mean()),
            float(prefill.mean()),
            float(np.quantile(prefill, 0.99)),
        )


@dataclass(frozen=True)
class Capacity:
    """What one replica can do for a mix at a TPOT target."""

    rho: float  # share of its time for tokens; work arrives at rho seconds a second when it is full
    slots: int  # requests in flight at that load
    step_s: float  # of a step at that load
    kv_tokens: float  # held at that load

    @classmethod
    def of(cls, profile: Profile, mix: Mix, tpot_s: float) -> Capacity:
        """The largest load at which a step takes at most 0.9 of the target and slots and KV suffice."""
        mean = scaling.Mix(mix.prompt, mix.output, mix.work_s, mix.prefill_s)
        limits = scaling.Limits(float(profile.max_sequences), float(profile.kv_tokens), tpot_s)
        full = scaling.steady(profile.step_seconds, mean, limits)
        held = mix.prompt + mix.output / 2
        return cls(full.rho, max(1, round(full.in_flight)), full.step_s, full.in_flight * held)


def load(name: str) -> Profile:
    """A profile by its name, or from a file. Raises FileNotFoundError, msgspec.ValidationError."""
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Profile)


def names() -> list[str]:
    """Profiles that come with Headrace."""
    return builtin.profiles()
