"""Qwen2 and Qwen2.5: as Llama, with biases of queries, keys and values."""

from __future__ import annotations

from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights

ARCHITECTURE = "Qwen2ForCausalLM"


def build(config: DecoderConfig, weights: Weights, parallel: Parallel) -> Decoder:
    """The decoder as it is."""
    return Decoder(config, weights, parallel)
