"""What every attention backend is told, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class AttentionMeta:
    """Where the tokens of a step sit. Rows are sequences, those with one new token first.

    The new tokens of row r are tokens query_start[r] to query_start[r + 1] of the step and the last of its
    context_len[r] tokens of context; token i of them sees all context up to and with itself, or the backend's window.
    """

    decode_rows: int  # leading rows with exactly one new token
    query_start: Tensor  # int32 [rows + 1]
    context_len: Tensor  # int32 [rows], new tokens included
    prompt_len: Tensor  # int32 [rows]: tokens of the prompt; those after it were generated
    logit_rows: Tensor  # int64 [sampled rows]: index of the token whose logits are wanted
    pages: list[Tensor]  # by KV group: int32 [rows, most pages of a row], 0 (the dummy page) after a row's end
    slots: list[Tensor]  # by KV group: int64 [tokens], page * 64 + offset of each new token
    max_query: int  # most new tokens of a row
    max_context: int


@dataclass(frozen=True)
class LayerKv:
    """One layer's keys and values; the layout belongs to the backend that made it."""

    k: Tensor
    v: Tensor


class Attention(Protocol):
    """A backend: owns the layout of KV, writes new keys and values, and attends."""

    layout: str  # name, part of the cache root

    def allocate(self, pages: int, kv_heads: int, head_dim: int) -> LayerKv:
        """KV of one layer: `pages` pages and the dummy page 0."""
        ...

    def prepare(self, meta: AttentionMeta) -> Any:
        """What all layers of a step share; handed to `run` as `step`."""
        ...

    def run(self, qkv: Tensor, kv: LayerKv, step: Any) -> Tensor:
        """Write keys and values of the new tokens into the pages and attend.

        qkv [tokens, heads + 2 * kv_heads, D], queries before keys before values -> [tokens, heads, D].
        """
        ...
