"""JSON schema of a pydantic type -> structural schema of a CRD.

A structural schema has no $ref, no null, no additionalProperties beside properties, no exclusive bounds and, as this
API holds no floats, no numbers but integers. Every field keeps its description.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_args

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "type", "format", "description", "default", "enum", "pattern", "required", "items", "properties",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
)  # fmt: skip
_INT32_MAX = 2**31 - 1


class SchemaError(TypeError):
    """A type cannot be said in a structural schema; `path` names the field."""

    def __init__(self, path: str, message: str):
        super().__init__(f"{path}: {message}")


def structural(kind: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of a type; without `defaults`, absent fields stay absent. Raises SchemaError."""
    raw = kind.model_json_schema(by_alias=True, mode="validation")
    schema = _convert(raw, raw.get("$defs", {}), kind.__name__)
    _sort_required(schema)
    if defaults:
        _add_defaults(schema, kind)
    else:
        _drop_defaults(schema)
    return schema


def _convert(node: Schema, definitions: Mapping[str, Schema], path: str) -> Schema:
    node = _inline(node, definitions, path)
    if "x-kubernetes-int-or-string" in node:
        return deepcopy(node)
    result = {key: deepcopy(node[key]) for key in _KEPT if key in node}
    result.update({key: deepcopy(value) for key, value in node.items() if key.startswith("x-")})
    if "const" in node:
        result["enum"] = [node["const"]]
    _check_number(result, node, path)
    if result.get("default", 0) is None:
        del result["default"]
    if "properties" in node:
        result["properties"] = {
            name: _convert(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()
        }
    elif node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = _values(node, definitions, path)
    if "items" in node:
        result["items"] = _convert(node["items"], definitions, f"{path}[]")
    if "type" not in result:
        raise SchemaError(path, "has no type")
    return result


def _inline(node: Schema, definitions: Mapping[str, Schema], path: str) -> Schema:
    """Resolve $ref and `X or null`; what stands beside them (a description) wins."""
    if "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _inline({**definitions[name], **beside}, definitions, path)
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        if len(choices) != 1:
            raise SchemaError(path, "is a union of several types")
        beside = {key: value for key, value in node.items() if key != "anyOf"}
        return _inline({**choices[0], **beside}, definitions, path)
    return node


def _values(node: Schema, definitions: Mapping[str, Schema], path: str) -> Schema:
    values = node.get("additionalProperties")
    if not isinstance(values, dict) or not values:
        raise SchemaError(path, "is an object of unknown content")
    return _convert(values, definitions, f"{path}.*")


def _check_number(result: Schema, node: Schema, path: str) -> None:
    if result.get("type") == "number":
        raise SchemaError(path, "is a float")
    if "exclusiveMinimum" in node or "exclusiveMaximum" in node:
        raise SchemaError(path, "has an exclusive bound")
    if result.get("type") == "integer":
        small = node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX
        result.setdefault("format", "int32" if small else "int64")


def _sort_required(schema: Schema) -> None:
    if "required" in schema:
        schema["required"] = sorted(schema["required"])
    for child in _children(schema):
        _sort_required(child)


def _children(schema: Schema) -> list[Schema]:
    found = list(schema.get("properties", {}).values())
    return found + [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]


def _drop_defaults(schema: Schema) -> None:
    schema.pop("default", None)
    schema.pop("x-no-default", None)
    for child in _children(schema):
        _drop_defaults(child)


def _add_defaults(schema: Schema, kind: type[BaseModel]) -> None:
    """An object that has only optional fields is filled in where it is absent, so that rules can read it."""
    for field in kind.model_fields.values():
        child = schema["properties"][field.alias or ""]
        if child.pop("x-no-default", False):
            child.pop("default", None)
        inner = _object_type(field.annotation)
        if inner is None:
            continue
        _add_defaults(child["items"] if child["type"] == "array" else child, inner)
        if field.default_factory is inner:
            child["default"] = _filled(child)


def _filled(schema: Schema) -> Schema:
    """The object that an empty one is defaulted to."""
    return {name: deepcopy(child["default"]) for name, child in schema["properties"].items() if "default" in child}


def _object_type(annotation: Any) -> type[BaseModel] | None:
    """The type of an object, an optional object or a list of objects."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_object_type(part) for part in get_args(annotation))
    return next((one for one in found if one is not None), None)
