"""The pool of KV: one LayerKv per layer, in the attention backend's layout."""

from __future__ import annotations

from headrace_engine.attention.base import Attention, LayerKv
from headrace_engine.core.plan import KvSpec
from headrace_wire.protocol import PAGE_TOKENS, KvGroup
from headrace_wire.shape import ModelShape


def bytes_per_token(shape: ModelShape, element: int) -> int:
    """KV bytes of one token over all layers; `element`: bytes of one element."""
    return shape.kv_elements_per_token() * element


def page_bytes(shape: ModelShape, element: int) -> int:
    """Bytes of one page over all layers."""
    return PAGE_TOKENS * bytes_per_token(shape, element)


def spec(shape: ModelShape, pages: int, element: int, layout: str) -> KvSpec:
    """One group: every layer keeps the whole context."""
    group = KvGroup(layers=shape.layers, bytes_per_token=bytes_per_token(shape, element))
    return KvSpec(pages=pages, groups=[group], layout=layout)


def allocate(shape: ModelShape, pages: int, attention: Attention) -> list[LayerKv]:
    """The pool's tensors; page 0 is the dummy."""
    return [attention.allocate(pages, shape.kv_heads, shape.head_dim) for _ in range(shape.layers)]
