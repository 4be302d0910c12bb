"""What is wrong with a body, in words for the one who sent it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec import inspect

_STEP = re.compile(r"\.|\[[^\]]*\]")  # between the names of a path; indices are of no matter


def not_json(error: Exception, data: bytes | bytearray) -> str:
    """Why bytes are no JSON: msgspec's words, or better ones where those mislead."""
    if not data.strip():
        return "the body is empty"
    if isinstance(error, RecursionError):
        return "the body is nested too deeply"
    told = str(error)[:200]
    if "truncated" in told and data.rstrip()[-1:] in b"}]":
        told = "a text is not closed, or half of a surrogate pair stands alone in it"
    return f"the body is not valid JSON: {told}"


def allowed(kind: object, path: str) -> str:
    """The values that a type takes at a path like `messages[0].role`, for people; empty where others fit, too."""
    nodes = [_node(kind)]
    for name in filter(None, _STEP.split(path)):
        nodes = [
            field.type
            for node in _plain(nodes)
            if isinstance(node, inspect.StructType)
            for field in node.fields
            if field.encode_name == name
        ]
    plain = list(_plain(nodes))
    values = [value for node in plain if isinstance(node, inspect.LiteralType) for value in node.values]
    others = any(not isinstance(node, inspect.LiteralType | inspect.NoneType) for node in plain)
    return "" if others else " or ".join(str(value) for value in sorted(values, key=str))


@lru_cache(maxsize=64)
def _node(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _plain(nodes: list[inspect.Type]) -> Iterator[inspect.Type]:
    """The types behind unions and lists."""
    for node in nodes:
        if isinstance(node, inspect.UnionType):
            yield from _plain(list(node.types))
        elif isinstance(node, inspect.ListType | inspect.VarTupleType):
            yield from _plain([node.item_type])
        else:
            yield node
