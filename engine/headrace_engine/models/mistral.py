"""Mistral: as Llama; where the config has a window, attention ends at it. KV before it is kept all the same."""

from __future__ import annotations

from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights

ARCHITECTURE = "MistralForCausalLM"


def build(config: DecoderConfig, weights: Weights, parallel: Parallel) -> Decoder:
    """The decoder as it is."""
    return Decoder(config, weights, parallel)
