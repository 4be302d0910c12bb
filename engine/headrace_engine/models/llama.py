"""Llama 2 and 3: grouped-query attention, rotary positions (scaled or not), gated MLP."""

from __future__ import annotations

from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights

ARCHITECTURE = "LlamaForCausalLM"


def build(config: DecoderConfig, weights: Weights, parallel: Parallel) -> Decoder:
    """The decoder as it is."""
    return Decoder(config, weights, parallel)
