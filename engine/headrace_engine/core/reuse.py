"""What the prefix cache was worth: tokens asked for and found, seconds of prefill that were not computed."""

from __future__ import annotations

from headrace_engine.core.budget import StepTimes


class Reuse:
    """Counts since the start. A request counts once, when it is first admitted; recomputing never does."""

    def __init__(self) -> None:
        self.asked_tokens = 0  # of prompts
        self.hit_tokens = 0  # of them, found
        self.saved_s = 0.0

    def count(self, prompt: int, cached: int, times: StepTimes | None) -> None:
        """A prompt was admitted with its first `cached` tokens found.

        The saved seconds are what the step-time model says that these tokens would have added to a step, their
        attention to each other included and the step's own constant left out: they would have shared steps that run
        anyway. Hits before the model is known save nothing, so the sum is rather too low.
        """
        self.asked_tokens += prompt
        self.hit_tokens += cached
        if times is not None and cached:
            self.saved_s += times.prefill_alone(cached)
