"""A decoder-only transformer with a language-model head: what all families so far are."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace_engine.attention.base import Attention, AttentionMeta, LayerKv
from headrace_engine.models.config import DecoderConfig
from headrace_engine.models.layers import DecoderLayer, Linear, Parallel, RmsNorm, Rotary
from headrace_engine.models.loader import Weights

log = logging.getLogger(__name__)

PROGRESS_LINES = 4  # in the log while the layers are loaded
TIED_COPY_BYTES = 64 << 20  # a head that is the embedding is copied for speed only where that costs little


class Decoder:
    """Embedding, layers, final norm, head. Tensor names are those of the `model.` and `lm_head.` prefixes."""

    def __init__(self, config: DecoderConfig, weights: Weights, parallel: Parallel):
        """Raises StartError naming a tensor that is missing or of a wrong shape."""
        shape = config.shape
        self.config = config
        # A copy: with it nothing refers to the mapped files any more, and their pages leave the resident memory.
        self._embedding = weights.get("model.embed_tokens.weight", shape.vocab, shape.hidden).clone()
        self._layers = []
        for i in range(shape.layers):
            self._layers.append(DecoderLayer(weights, f"model.layers.{i}", config, parallel))
            if (i + 1) * PROGRESS_LINES // shape.layers > i * PROGRESS_LINES // shape.layers:
                log.info("weights loaded", extra={"layers": i + 1, "of": shape.layers})
        self._norm = RmsNorm(weights.get("model.norm.weight", shape.hidden), config.norm_eps)
        head = self._embedding if shape.tied else weights.get("lm_head.weight", shape.vocab, shape.hidden)
        self._head = Linear(head, copy=not shape.tied or head.nbytes <= TIED_COPY_BYTES)
        self._rotary = Rotary(config)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._embedding.dtype

    def __call__(
        self, tokens: Tensor, positions: Tensor, meta: AttentionMeta, attention: Attention, kv: Sequence[LayerKv]
    ) -> Tensor:
        """tokens, positions int64 [tokens] -> logits fp32 [sampled rows, vocab]; the head runs on those rows alone."""
        step = attention.prepare(meta)
        rotation = self._rotary.at(positions)
        x = F.embedding(tokens, self._embedding)
        for layer, layer_kv in zip(self._layers, kv, strict=True):
            x = layer(x, rotation, attention, layer_kv, step)
        if meta.logit_rows.numel() < x.shape[0]:
            x = x.index_select(0, meta.logit_rows)
        return self._head(self._norm(x)).float()
