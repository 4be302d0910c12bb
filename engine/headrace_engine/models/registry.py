"""Families by the architecture's name in config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from headrace_engine.core.failure import StartError
from headrace_engine.models import llama, mistral, qwen2, qwen3
from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights


class Family(Protocol):
    """Builds a model of one architecture."""

    def __call__(self, config: DecoderConfig, weights: Weights, parallel: Parallel) -> Decoder:
        """Raises StartError naming a tensor that is missing or of a wrong shape."""
        ...


FAMILIES: dict[str, Family] = {family.ARCHITECTURE: family.build for family in (llama, mistral, qwen2, qwen3)}


def load(folder: Path, config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    """The model of a folder, on one rank."""
    family = FAMILIES.get(config.shape.architecture)
    if family is None:
        message = f"config.json: architectures: {config.shape.architecture} is not supported"
        raise StartError("ArchitectureUnsupported", message, "config.json")
    with Weights(folder, dtype) as weights:
        return family(config, weights, Parallel())
