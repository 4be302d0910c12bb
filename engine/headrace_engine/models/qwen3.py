"""Qwen3, dense: as Llama, with RMS norms over each query and key head before the rotation."""

from __future__ import annotations

from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights

ARCHITECTURE = "Qwen3ForCausalLM"


def build(config: DecoderConfig, weights: Weights, parallel: Parallel) -> Decoder:
    """The decoder; `shape.qk_norm` turns the head norms on."""
    if not config.shape.qk_norm:
        raise ValueError("a Qwen3 shape has head norms")
    return Decoder(config, weights, parallel)
