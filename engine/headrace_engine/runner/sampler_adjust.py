"""What a request asks to be changed in its logits: penalties, biases, stop ids that come too early."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace_wire.protocol import Sampling


class Asked(Protocol):
    """One row's wishes and its tokens so far."""

    @property
    def sampling(self) -> Sampling:
        """Penalties, biases, least output."""

    @property
    def position(self) -> int:
        """Of the drawn token in the output, from 0."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Prompt, then output."""

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""

    @property
    def stop_ids(self) -> list[int] | None:
        """That must not be drawn before `sampling.min_tokens`."""


def adjust(logits: Tensor, asked: Asked) -> None:
    """Change one row's logits fp32 [vocab] in place.

    Repetition counts prompt and output, presence and frequency the output alone. A function of the tokens and not of
    the steps that brought them.
    """
    s = asked.sampling
    if s.repetition != 1.0 and len(asked.tokens):
        seen = torch.from_numpy(np.unique(asked.tokens).astype(np.int64))
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / s.repetition, values * s.repetition)
    output = asked.tokens[asked.prompt : asked.prompt + asked.position]
    if (s.presence or s.frequency) and len(output):
        ids, counts = np.unique(output, return_counts=True)
        penalty = s.presence + s.frequency * torch.from_numpy(counts).float()
        logits[torch.from_numpy(ids.astype(np.int64))] -= penalty
    for token, bias in s.bias:
        logits[token] += bias
    if asked.position < s.min_tokens and asked.stop_ids:
        logits[asked.stop_ids] = float("-inf")
