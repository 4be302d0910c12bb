"""Mistral: as Llama. Its window is not implemented: contexts end at its size (see `headrace_wire.shape`)."""

from __future__ import annotations

from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.layers import Parallel
from headrace_engine.models.loader import Weights

ARCHITECTURE = "MistralForCausalLM"


def build(config: DecoderConfig, weights: Weights, parallel: Parallel, max_tokens: int) -> Decoder:
    """The decoder as it is."""
    return Decoder(config, weights, parallel, max_tokens)
